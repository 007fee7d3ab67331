// Cancel and restart: asked for again, with what is lost and the command that does the same.
import { element, setText } from "./dom.js";
import { post } from "./server.js";

function ask(title, details, command, verb) {
  const dialog = document.getElementById("dialog");
  return new Promise((resolve) => {
    const close = (answer) => () => { dialog.close(); resolve(answer); };
    dialog.replaceChildren(
      element("h2", { id: "question" }, title),
      ...details.map((detail) => element("p", {}, detail)),
      element("p", { class: "quiet" }, "The same on the command line: ", element("code", {}, command)),
      element("p", { class: "buttons" },
        element("button", { type: "button", autofocus: true, onclick: close(false) }, "Keep"),
        element("button", { type: "button", class: "danger", id: "confirm", onclick: close(true) }, verb)));
    dialog.oncancel = () => resolve(false);
    dialog.showModal();
  });
}

// Show what has failed: of the last action or, with the id `problem`, of hosts and of the link to the command.
export function tell(text, id = "failure") {
  const line = document.getElementById(id);
  setText(line, text);
  line.hidden = !text;
}

async function attempt(action) {
  try {
    tell("");
    await action();
  } catch (error) {
    tell(error.message);
  }
}

export function cancelRun(cluster, run) {
  return attempt(async () => {
    if (await ask(`Cancel ${run}?`, ["The run stops, and everything that it has not saved is lost."], `tfcluster cancel ${run} -c ${cluster}`, "Cancel the run")) {
      await post("/api/cancel", { run });
    }
  });
}

export function restartTask(cluster, task) {
  return attempt(async () => {
    let accepted = null;
    for (;;) {
      const plan = await post("/api/restart", { task, accepted });
      if (plan.restarts) return;
      const details = plan.losses.length ? ["This is lost:", ...plan.losses] : ["Nothing is lost."];
      const yes = plan.losses.length ? " --yes" : "";
      if (!(await ask(`Restart ${task}?`, details, `tfcluster restart ${task}${yes} -c ${cluster}`, "Restart"))) return;
      accepted = plan.losses;
    }
  });
}
