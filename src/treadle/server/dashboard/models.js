// The choice of a model or an adapter, and what state each model is in; leaves fetching that to app.js.

import { byId, count, duration, element, setText } from "./format.js";
import { keepSettings, keptSettings } from "./store.js";

const choice = byId("model");
let wanted = keptSettings().model ?? "";

choice.addEventListener("change", () => {
  wanted = choice.value;
  keepSettings({ model: wanted });
});

/** Brings the choice and the list up to date with what /stats told. */
export function showModels(models) {
  const offers = models.flatMap((model) => [model.name, ...model.adapters].map((name) => ({ name, model })));
  if (offers.map(({ name }) => name).join("\n") !== [...choice.options].map(({ value }) => value).join("\n")) {
    choice.replaceChildren(...offers.map(({ name }) => new Option(name, name)));
    choice.value = (offers.find(({ name }) => name === wanted) ?? offers.find(({ model }) => !(model.embeds_only || model.ranks)) ?? offers[0])?.name ?? "";
  }
  offers.forEach(({ name, model }, index) => {
    setText(choice.options[index], optionWords(name, model));
    choice.options[index].disabled = model.embeds_only === true || model.ranks === true;
  });
  showList(models);
}

/** The model of that name, or that the adapter of that name belongs to. */
export function modelOf(stats, name = choice.value) {
  return stats.models.find((model) => model.name === name || model.adapters.includes(name)) ?? null;
}

function optionWords(name, model) {
  const words = [];
  if (name !== model.name) words.push(`adapter of ${model.name}`);
  if (model.embeds_only) words.push("embeddings only");
  if (model.ranks) words.push("ranking only");
  if (model.is_loading) words.push("loading");
  else if (!model.is_loaded) words.push("not loaded");
  return words.length ? `${name} (${words.join(", ")})` : name;
}

function showList(models) {
  const list = byId("models");
  if (list.children.length !== models.length) list.replaceChildren(...models.map(() => element("div", "", element("dt"), element("dd"))));
  models.forEach((model, index) => {
    const [name, state] = list.children[index].children;
    setText(name, model.name);
    setText(state, stateWords(model));
    list.children[index].dataset.state = model.is_loading ? "loading" : !model.is_loaded ? "absent" : model.users ? "busy" : "idle";
  });
}

function stateWords(model) {
  const place = model.is_elsewhere ? ", elsewhere" : "";
  if (model.is_loading) return `loading${place}`;
  if (!model.is_loaded) return `not loaded${place}`;
  return (model.users ? `serving ${count(model.users, "request")}` : `idle for ${duration(model.idle_seconds ?? 0)}`) + place;
}
