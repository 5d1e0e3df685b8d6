// Starts the page: keys, model choice, the form, and the loop that asks the server how it is.

import { ApiError, fetchStats, storeKey, storedKey } from "./api.js";
import { Chat } from "./chat.js";
import { showEngine } from "./engine.js";
import { element } from "./format.js";

const POLL_MS = 1000;
const RETRY_MS = 4000;

const byId = (id) => document.getElementById(id);
const question = byId("question");
const modelChoice = byId("model");
const keyDialog = byId("key-dialog");

const chat = new Chat({
  messages: byId("messages"),
  scroller: byId("scroller"),
  announcement: byId("announcement"),
  onRefused: askForKey,
  onState: showRunning,
});

let lastStats = null;
let timer = 0;
let isPolling = false;

async function poll() {
  clearTimeout(timer);
  if (isPolling || document.hidden || keyDialog.open) return;
  isPolling = true;
  let pause = POLL_MS;
  try {
    lastStats = await fetchStats();
    showModels(lastStats.models);
    showEngine(lastStats, modelChoice.value);
    showConnection("ok", lastStats.models.some((model) => model.is_loaded) ? "ready" : "no model loaded");
  } catch (error) {
    pause = RETRY_MS;
    if (error instanceof ApiError && error.status === 401) askForKey();
    else showConnection("lost", error instanceof ApiError ? error.message : "no connection to the server");
  }
  isPolling = false;
  timer = setTimeout(poll, pause);
}

function showConnection(state, text) {
  const place = byId("connection");
  place.dataset.state = state;
  if (place.textContent !== text) place.textContent = text; // a screen reader hears changes only
  byId("key-button").hidden = !storedKey() && state !== "locked";
  byId("key-button").textContent = storedKey() ? "Forget the API key" : "Enter the API key";
}

function showModels(models) {
  const chosen = modelChoice.value;
  const names = models.map((model) => model.name);
  if (names.join("\n") !== [...modelChoice.options].map((option) => option.value).join("\n")) {
    modelChoice.replaceChildren(...names.map((name) => element("option", "", name)));
    if (names.includes(chosen)) modelChoice.value = chosen;
  }
  models.forEach((model, index) => {
    const text = model.is_loaded ? model.name : `${model.name} (not loaded)`;
    const option = modelChoice.options[index];
    option.value = model.name;
    if (option.textContent !== text) option.textContent = text;
  });
}

function askForKey() {
  if (keyDialog.open) return;
  byId("key-text").textContent = storedKey()
    ? "The server refused this key. Is there another?"
    : "This server asks for a key. It is kept in this tab until you close it.";
  storeKey("");
  showConnection("locked", "an API key is needed");
  keyDialog.showModal();
}

function showRunning(isRunning) {
  const [shown, hidden] = isRunning ? [byId("stop"), byId("send")] : [byId("send"), byId("stop")];
  const hadFocus = document.activeElement === hidden;
  hidden.hidden = true;
  shown.hidden = false;
  if (hadFocus) (isRunning ? shown : question).focus();
  showEmpty();
}

function showEmpty() {
  byId("empty").hidden = byId("messages").children.length > 0;
}

async function send() {
  const text = question.value.trim();
  if (!text || chat.isRunning || !byId("composer").reportValidity()) return;
  question.value = "";
  fitQuestion();
  const options = { model: modelChoice.value, system: byId("system").value.trim(), sampling: sampling() };
  const isTaken = await chat.send(text, options);
  if (!isTaken && !question.value) {
    question.value = text; // to be sent again
    fitQuestion();
  }
}

/** What the fields say; one left empty is left to the server. */
function sampling() {
  const fields = byId("composer").querySelectorAll("input[type=number]");
  return Object.fromEntries([...fields].filter((field) => field.value !== "").map((field) => [field.name, field.valueAsNumber]));
}

function fitQuestion() {
  question.style.height = "auto";
  question.style.height = `${question.scrollHeight}px`;
}

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
question.addEventListener("input", fitQuestion);
question.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return; // an input method may be choosing a word
  event.preventDefault();
  send();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && chat.isRunning && !keyDialog.open) chat.stop();
});
byId("stop").addEventListener("click", () => chat.stop());
byId("clear").addEventListener("click", () => {
  chat.clear();
  showEmpty();
  question.focus();
});
modelChoice.addEventListener("change", () => lastStats && showEngine(lastStats, modelChoice.value));
byId("key-button").addEventListener("click", () => {
  storeKey("");
  askForKey();
});
byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  storeKey(byId("key").value.trim());
  byId("key").value = "";
  keyDialog.close();
});
keyDialog.addEventListener("close", () => {
  if (storedKey()) poll();
  question.focus();
});
document.addEventListener("visibilitychange", poll);

question.focus();
poll();
