// The system message and how tokens are sampled: kept in this browser, and what is left empty is left to the server.

import { byId } from "./format.js";
import { keepSettings, keptSettings } from "./store.js";

export class Settings {
  constructor() {
    this.panel = byId("settings");
    this.button = byId("settings-button");
    this.fields = [...this.panel.querySelectorAll("input, textarea")];
    const kept = keptSettings().fields ?? {};
    for (const field of this.fields) field.value = kept[field.name] ?? "";
    this.panel.addEventListener("input", () => this.#changed());
    this.button.addEventListener("click", () => this.#show(this.panel.hidden));
    byId("settings-reset").addEventListener("click", () => {
      for (const field of this.fields) field.value = "";
      this.#changed();
      this.fields[0].focus();
    });
    this.#changed();
  }

  get system() {
    return byId("system").value.trim();
  }

  get sampling() {
    const numbers = this.#given.filter((field) => field.type === "number");
    return Object.fromEntries(numbers.map((field) => [field.name, field.valueAsNumber]));
  }

  /** Returns whether all fields say something possible; shows the one that does not. */
  check() {
    const wrong = this.fields.find((field) => !field.validity.valid);
    if (!wrong) return true;
    this.#show(true);
    wrong.reportValidity();
    return false;
  }

  /** Escape leads back to the message. Returns whether it was open. */
  close() {
    const wasOpen = !this.panel.hidden;
    this.#show(false);
    return wasOpen;
  }

  get #given() {
    return this.fields.filter((field) => field.value.trim() !== "");
  }

  #show(isOpen) {
    this.panel.hidden = !isOpen;
    this.button.setAttribute("aria-expanded", isOpen);
  }

  #changed() {
    const given = this.#given;
    this.button.textContent = given.length ? `Settings · ${given.length}` : "Settings";
    byId("settings-reset").disabled = given.length === 0;
    keepSettings({ fields: Object.fromEntries(given.map((field) => [field.name, field.value])) });
  }
}
