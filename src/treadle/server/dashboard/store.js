// Keeps conversations and settings in this browser, within bounds; leaves to others what they mean.
//
// What is kept is read again each time, since other tabs write it too. Where a browser keeps nothing, all still works
// until the page is closed.

const CONVERSATIONS = "treadle.conversations";
const SETTINGS = "treadle.settings";
const CURRENT = "treadle.conversation";
const MOST = 50;
const MOST_CHARACTERS = 2_000_000;

export function newConversation() {
  return { id: `${Date.now().toString(36)}-${Math.random().toString(36).slice(2)}`, changed: Date.now(), turns: [] };
}

/** What people call it: its first message. */
export function titleOf(conversation) {
  const first = conversation.turns.find((turn) => turn.role === "user");
  return first ? first.content.replaceAll(/\s+/g, " ").slice(0, 80) : "Empty";
}

/** All that are kept, the latest first. */
export function keptConversations() {
  const found = read("localStorage", CONVERSATIONS);
  return Array.isArray(found) ? found.filter(isConversation).map(asLeft) : [];
}

/** Keeps a conversation as it stands, instead of the oldest ones if need be. */
export function keep(conversation) {
  conversation.changed = Date.now();
  rememberCurrent(conversation.id);
  const others = keptConversations().filter((other) => other.id !== conversation.id);
  let kept = [conversation, ...others].slice(0, MOST);
  while (kept.length && !write(CONVERSATIONS, kept)) kept = kept.slice(0, -1);
}

export function forget(id) {
  write(CONVERSATIONS, keptConversations().filter((other) => other.id !== id));
}

export function forgetAll() {
  write(CONVERSATIONS, []);
}

/** The conversation this tab showed last, if it is still kept. */
export function currentConversation() {
  const id = read("sessionStorage", CURRENT);
  return keptConversations().find((each) => each.id === id) ?? null;
}

export function rememberCurrent(id) {
  try {
    sessionStorage.setItem(CURRENT, JSON.stringify(id));
  } catch {
    // then a reload begins a new one
  }
}

export function keptSettings() {
  const found = read("localStorage", SETTINGS);
  return found !== null && typeof found === "object" ? found : {};
}

export function keepSettings(settings) {
  write(SETTINGS, { ...keptSettings(), ...settings });
}

function read(storage, name) {
  try {
    return JSON.parse(window[storage].getItem(name));
  } catch {
    return null;
  }
}

/** Returns false if it is too much; a browser that forbids keeping anything is as good as one that kept it. */
function write(name, value) {
  const text = JSON.stringify(value);
  if (text.length > MOST_CHARACTERS) return false;
  try {
    localStorage.setItem(name, text);
    return true;
  } catch (error) {
    return error.name !== "QuotaExceededError";
  }
}

function isConversation(each) {
  return typeof each?.id === "string" && Array.isArray(each.turns) && each.turns.every((turn) => typeof turn?.content === "string");
}

/** A page that was closed left its answer as it was. */
function asLeft(conversation) {
  for (const turn of conversation.turns) {
    if (turn.state === "pending") Object.assign(turn, { state: "stopped", note: "Stopped" });
  }
  return conversation;
}
