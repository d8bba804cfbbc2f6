// Asks before something is done that is hard to undo: the name of what it is about must be typed.

import { element, say } from "./format.js";

const find = (id) => document.getElementById(id);

/** Asks; whether it is to be done. `told`: sentences; `name`: what is to be typed. */
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
