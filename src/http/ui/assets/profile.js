// Records a profile on the node that serves this page, and shows it in a frame without an origin.

import { element, say, span } from "./format.js";
import { ask, refusal } from "./session.js";
import { explain } from "./terms.js";

const EVENTS = [["cpu", "CPU"], ["alloc", "Allocation"], ["lock", "Locks"], ["wall", "Wall"]];

/** Shows `html` as a document of its own. */
function frame(host, html) {
  const made = element("iframe");
  made.title = "Recorded profile";
  made.setAttribute("sandbox", "allow-scripts allow-downloads");
  made.src = "/ui/frame";
  // The frame has no origin that could be named; the posted data are not secret to it.
  made.addEventListener("load", () => made.contentWindow.postMessage(html, "*"), { once: true });
  host.replaceChildren(made);
}

function save(html, name) {
  const link = element("a");
  link.href = URL.createObjectURL(new Blob([html], { type: "text/html" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

export class Profile {
  constructor() {
    this.form = document.getElementById("profile");
    this.said = document.getElementById("recorded");
    this.panel = document.getElementById("graphs");
    this.host = document.getElementById("graphs-frame");
    this.html = "";
    const events = this.form.querySelector(".events");
    for (const [name, title] of EVENTS) {
      const box = element("input");
      box.type = "checkbox";
      box.name = "event";
      box.value = name;
      box.checked = name === "cpu";
      const term = title === "CPU" ? "CPU time" : title;
      events.append(element("label", "", box, explain(element("span", "", title), term)));
    }
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.record();
    });
    document.getElementById("graphs-close").addEventListener("click", () => this.close());
    document.getElementById("graphs-save").addEventListener("click", () => {
      save(this.html, `${location.host.replace(":", "-")}-profile.html`);
    });
  }

  close() {
    this.panel.hidden = true;
    this.host.replaceChildren();
    this.form.querySelector("button").focus();
  }

  fail(text) {
    this.said.className = "error";
    say(this.said, text);
  }

  async record() {
    const fields = new FormData(this.form);
    const events = fields.getAll("event");
    if (events.length === 0) return this.fail("Select at least one event.");
    const seconds = Number(fields.get("seconds"));
    const query = `event=${events.join(",")}&seconds=${seconds}&format=html`;
    const button = this.form.querySelector("button");
    button.disabled = true;
    this.said.className = "";
    const end = Date.now() + seconds * 1000;
    const tell = () => {
      const left = (end - Date.now()) / 1000;
      say(this.said, left > 0 ? `recording, ${span(Math.ceil(left))} left` : "drawing …");
    };
    tell();
    const ticking = setInterval(tell, 500);
    try {
      const answer = await ask(`/admin/profile?${query}`);
      if (!answer.ok) return this.fail(await refusal("admin", answer));
      this.html = await answer.text();
      this.panel.hidden = false;
      frame(this.host, this.html);
      say(this.said, `Recorded ${span(seconds)} of ${events.join(", ")}.`);
      this.panel.scrollIntoView({ block: "start" });
    } catch (error) {
      this.fail(`Cannot reach the node: ${error.message}`);
    } finally {
      clearInterval(ticking);
      button.disabled = false;
    }
  }
}
