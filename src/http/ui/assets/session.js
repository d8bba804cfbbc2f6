// The session of this page: the token that the user entered, and the scopes that it lacks. The
// token is in a variable of this file, and in the storage of the tab, so that a reload keeps it;
// nowhere else: not in a cookie, in a URL, or where other tabs see it.
//
//   login ─▶ token ─▶ ask ─▶ 401, 403 ─▶ refused ─▶ the login, and the panels of that scope

import { element, say } from "./format.js";

const KEPT_AS = "kvorum-token";

/** Returns the stored token, if the browser has storage. */
function kept() {
  try {
    return sessionStorage.getItem(KEPT_AS) ?? "";
  } catch {
    return "";
  }
}

let token = kept();

/** Replaces the token; an empty one removes it. */
function hold(given) {
  token = given;
  try {
    if (given) sessionStorage.setItem(KEPT_AS, given);
    else sessionStorage.removeItem(KEPT_AS);
  } catch {
    // Storage is off: a reload forgets the token.
  }
}

/** Reasons why a scope's data are not shown, in words. */
const refusals = new Map();

/** Functions to call once there is another token. */
const listeners = [];

/** A token that can be sent: any other character would have a meaning of its own in a header. */
const SENDABLE = /^[\x20-\x7e]+$/;

const find = (id) => document.getElementById(id);

export function onLogin(listener) {
  listeners.push(listener);
}

/** Sends a request to the node, for which a token of that scope may be needed. */
export async function ask(target, options = {}) {
  const by = token;
  const headers = by ? { authorization: `Bearer ${by}` } : {};
  const answer = await fetch(target, { ...options, headers, cache: "no-store" });
  if (by !== token && !answer.ok) throw new Error("another token was given meanwhile");
  return answer;
}

/** Returns the reason of a refusal, in the node's words. */
async function reason(answer) {
  const text = await answer.text();
  try {
    const { title, detail } = JSON.parse(text);
    return { title, detail: detail ?? title };
  } catch {
    return { detail: text || `the node answers ${answer.status}` };
  }
}

/** Handles a refusal, which may be of the token; returns the message to show. */
export async function refusal(scope, answer) {
  const by = token;
  const { title, detail } = await reason(answer);
  if (answer.status !== 401) return title ? `${title}: ${detail}` : detail;
  if (by && by === token) {
    // The node does not know the token at all.
    hold("");
    open(detail);
  }
  return `Log in with a token for ${scope}.`;
}

/** Closes the panels of a scope, because its requests are refused. */
export async function close(scope, answer) {
  refusals.set(scope, await refusal(scope, answer));
  if (scope === "metrics" && answer.status === 401) open();
  render();
}

/** Opens the panels of a scope, because its requests are answered. */
export function allow(scope) {
  if (refusals.delete(scope)) render();
}

/** Shows the login. */
function open(why = "") {
  const form = find("login");
  if (why) say(find("login-said"), why);
  if (form.hidden) {
    form.hidden = false;
    if (document.activeElement === document.body) find("login-token").focus();
  }
  render();
}

function render() {
  say(find("session"), token ? "Log out" : "Log in");
  for (const panel of document.querySelectorAll("[data-scope]")) {
    const why = refusals.get(panel.dataset.scope);
    panel.classList.toggle("closed", why !== undefined);
    const title = panel.querySelector("h2");
    if (title === null) continue;
    let said = panel.querySelector(".refused");
    if (why === undefined) {
      said?.remove();
      continue;
    }
    if (said === null) {
      said = element("p", "refused");
      title.after(said);
    }
    say(said, why);
  }
}

function logIn(event) {
  event.preventDefault();
  const field = find("login-token");
  const given = field.value.trim();
  if (!SENDABLE.test(given)) {
    say(find("login-said"), "A token consists of letters, digits and signs of ASCII.");
    return;
  }
  hold(given);
  field.value = "";
  find("login").hidden = true;
  say(find("login-said"), "");
  find("session").focus();
  refusals.clear();
  render();
  for (const listener of listeners) listener();
}

/** Sets up the login and its button, which also forgets the token and the data shown with it. */
export function session() {
  find("login").addEventListener("submit", logIn);
  find("session").addEventListener("click", () => {
    if (token) {
      hold("");
      location.reload();
    } else if (find("login").hidden) {
      open();
      find("login-token").focus();
    } else {
      find("login").hidden = true;
    }
  });
  render();
}
