// Confirmation of actions that are hard to undo: the name of their subject must be typed.

import { element, say } from "./format.js";

const find = (id) => document.getElementById(id);

/**
 * Asks for confirmation; resolves to true if it is given. `told`: sentences; `name`: to be typed.
 */
export function confirm(told, name) {
  const [dialog, field, apply] = ["confirm", "confirm-name", "confirm-apply"].map(find);
  find("confirm-told").replaceChildren(...told.map((text) => element("p", "", text)));
  say(find("confirm-asked"), name);
  field.value = "";
  apply.disabled = true;
  field.oninput = () => {
    apply.disabled = field.value !== name;
  };
  dialog.returnValue = "";
  dialog.showModal();
  field.focus();
  return new Promise((done) => {
    dialog.addEventListener("close", () => {
      done(dialog.returnValue === "apply" && field.value === name);
    }, { once: true });
  });
}
