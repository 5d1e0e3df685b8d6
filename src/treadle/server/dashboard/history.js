// The list of conversations that this browser keeps: to open one again, or forget it.

import { byId, element, setText } from "./format.js";
import { forget, forgetAll, keptConversations, titleOf } from "./store.js";

const dialog = byId("history-dialog");
const forgetButton = byId("forget-all");

/** `onOpen` is called with a conversation, `onForget` with the id of one that is kept no more, or null for all. */
export function watchHistory({ onOpen, onForget }) {
  const open = (conversation) => {
    dialog.close();
    onOpen(conversation);
  };
  const drop = (conversation) => {
    forget(conversation.id);
    onForget(conversation.id);
    show(open, drop);
    (dialog.querySelector(".kept button") ?? byId("history-close")).focus();
  };
  byId("history-button").addEventListener("click", () => {
    show(open, drop);
    dialog.showModal();
  });
  byId("history-close").addEventListener("click", () => dialog.close());
  forgetButton.addEventListener("click", (event) => {
    if (event.detail > 1) return null; // the second click of a pair is no answer to the question
    if (forgetButton.dataset.asked !== "yes") return askAgain(true);
    forgetAll();
    onForget(null);
    return dialog.close();
  });
}

function askAgain(isAsked) {
  forgetButton.dataset.asked = isAsked ? "yes" : "no";
  setText(forgetButton, isAsked ? "Yes, forget all" : "Forget all");
}

function show(open, drop) {
  const kept = keptConversations();
  byId("kept").replaceChildren(...kept.map((conversation) => row(conversation, open, drop)));
  byId("none-kept").hidden = kept.length > 0;
  forgetButton.disabled = kept.length === 0;
  askAgain(false);
}

function row(conversation, open, drop) {
  const title = titleOf(conversation);
  const changed = new Date(conversation.changed).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
  const name = element("span", "title", title);
  name.dir = "auto";
  const opening = element("button", "quiet", name, element("small", "", changed));
  const dropping = element("button", "small", "Forget");
  dropping.setAttribute("aria-label", `Forget ${title}`);
  for (const [button, act] of [[opening, open], [dropping, drop]]) {
    button.type = "button";
    button.addEventListener("click", () => act(conversation));
  }
  return element("li", "kept", opening, dropping);
}
