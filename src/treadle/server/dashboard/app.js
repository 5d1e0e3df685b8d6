// Starts the page: puts its parts together, and asks the server again and again how it is.

import { ApiError, fetchStats } from "./api.js";
import { Chat, contextWords } from "./chat.js";
import { watchComposer } from "./composer.js";
import { showConversation, showEngine, watchEngineButton } from "./engine.js";
import { byId, setText } from "./format.js";
import { watchHistory } from "./history.js";
import { askForKey, isAskingForKey, showKeyButton, watchKey } from "./keys.js";
import { modelOf, showModels } from "./models.js";
import { NUM_SHOWN } from "./requests.js";
import { Scroller } from "./scroller.js";
import { Settings } from "./settings.js";
import { currentConversation, newConversation, rememberCurrent } from "./store.js";

const BUSY_MS = 1000;
const IDLE_MS = 2000;
const LONGEST_MS = 15_000;

const question = byId("question");
const modelChoice = byId("model");
const settings = new Settings();
let lastStats = null;
let timer = 0;
let isPolling = false;
let pause = IDLE_MS;
let chat = null;

/** Nobody looks at a hidden page: it asks nothing, and catches up when it is looked at. */
async function poll() {
  clearTimeout(timer);
  if (isPolling || document.hidden || isAskingForKey()) return;
  isPolling = true;
  try {
    lastStats = await fetchStats(NUM_SHOWN);
    showStats();
    const isBusy = chat.isRunning || lastStats.models.some((model) => model.users > 0 || model.is_loading);
    pause = isBusy ? BUSY_MS : IDLE_MS;
  } catch (error) {
    pause = Math.min(2 * pause, LONGEST_MS);
    if (error instanceof ApiError && error.status === 401) {
      showConnection("locked", "an API key is needed");
      askForKey();
    } else {
      showConnection("lost", error instanceof ApiError ? error.message : "no connection to the server");
    }
  }
  isPolling = false;
  timer = setTimeout(poll, pause);
}

function showStats() {
  showModels(lastStats.models);
  showEngine(lastStats, modelOf(lastStats));
  showContext();
  const asked = modelOf(lastStats, chat.asked);
  if (asked) chat.tell(waitWords(asked));
  const placeholder = lastStats.limits.answer_tokens;
  byId("max-tokens").placeholder = placeholder ? `${placeholder}` : "to the end";
  const loading = lastStats.models.find((model) => model.is_loading);
  const isReady = lastStats.models.some((model) => model.is_loaded);
  showConnection("ok", loading ? `loading ${loading.name}` : isReady ? "ready" : "no model loaded");
}

function showConnection(state, text) {
  byId("connection").dataset.state = state;
  setText(byId("connection"), text);
  byId("stale").hidden = state === "ok" || lastStats === null;
  showKeyButton(state === "locked");
}

function showContext() {
  const limit = lastStats && modelOf(lastStats)?.context;
  setText(byId("context-use"), contextWords(chat.conversation, limit));
}

/** What to ask, and of whom: the server knows if no model is known here. */
function options() {
  return { model: modelChoice.value || undefined, system: settings.system, sampling: settings.sampling };
}

/** Why nothing comes yet. */
function waitWords(model) {
  if (!model.is_loaded) return `Loading ${model.name}…`;
  if (!model.threads) return ""; // elsewhere
  return model.waiting ? "Waiting in the queue…" : "Reading the prompt…";
}

function showState() {
  if (chat === null) return;
  const [shown, hidden] = chat.isRunning ? [byId("stop"), byId("send")] : [byId("send"), byId("stop")];
  const hadFocus = document.activeElement === hidden || document.activeElement === document.body;
  hidden.hidden = true;
  shown.hidden = false;
  if (hadFocus) (chat.isRunning ? shown : question).focus();
  byId("empty").hidden = chat.conversation.turns.length > 0;
  showContext();
  if (!chat.isRunning) return;
  const model = lastStats && modelOf(lastStats);
  if (model && !model.is_loaded) chat.tell(waitWords(model));
  poll();
}

function open(conversation) {
  rememberCurrent(conversation.id);
  chat.open(conversation);
  showConversation();
  question.focus();
}

function send(text) {
  if (chat.isRunning || !settings.check()) return false;
  settings.close();
  chat.send(text);
  return true;
}

function pressedEscape() {
  if (chat.isRunning) chat.stop();
  else if (settings.close()) question.focus();
}

chat = new Chat(new Scroller(byId("scroller"), byId("messages"), byId("newest")), byId("announcement"), {
  options,
  onState: showState,
  onRefused: askForKey,
});
chat.open(currentConversation() ?? newConversation());
watchComposer(send);
watchEngineButton();
watchHistory({
  onOpen: open,
  onForget: (id) => {
    if (id === null || id === chat.conversation.id) chat.forget();
  },
});
watchKey(() => {
  poll();
  if (chat.isRefused) chat.retry();
});
byId("stop").addEventListener("click", () => chat.stop());
byId("new").addEventListener("click", () => open(newConversation()));
modelChoice.addEventListener("change", () => lastStats && showStats());
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !document.querySelector("dialog[open]")) pressedEscape();
});
document.addEventListener("visibilitychange", poll);
window.addEventListener("online", poll);
window.addEventListener("pagehide", () => chat.save());

question.focus();
poll();
