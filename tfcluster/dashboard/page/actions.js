// Cancel and restart: the page asks first, and names what is lost and the command that does the same.
import { html, useLayoutEffect, useRef } from "./dom.js";
import { change } from "./model.js";
import { post } from "./server.js";

let isBusy = false;  // an action has begun: its question is shown, or is about to be

// Ask a question, and return whether the user agrees.
function ask(title, details, command, verb) {
  return new Promise((resolve) => change({ question: { title, details, command, verb, resolve } }));
}

export function Dialog({ question }) {
  const node = useRef();
  useLayoutEffect(() => {
    if (!question) node.current.close();
    else if (!node.current.open) node.current.showModal();
  }, [question]);
  const answer = (isAgreed) => { change({ question: null }); question.resolve(isAgreed); };
  const close = () => question && answer(false);  // by Escape
  return html`<dialog id="dialog" aria-labelledby="question" ref=${node} onClose=${close}>${question && html`
    <h2 id="question">${question.title}</h2>
    ${question.details.map((detail) => html`<p>${detail}</p>`)}
    <p class="quiet">The same on the command line: <code>${question.command}</code></p>
    <p class="buttons">
      <button type="button" autofocus onClick=${() => answer(false)}>Keep</button>
      <button type="button" class="danger" id="confirm" onClick=${() => answer(true)}>${question.verb}</button>
    </p>`}</dialog>`;
}

async function attempt(action) {
  if (isBusy) return;
  isBusy = true;
  try {
    change({ failure: "" });
    await action();
  } catch (error) {
    change({ failure: error.message });
  } finally {
    isBusy = false;
  }
}

export function cancelRun(cluster, run) {
  return attempt(async () => {
    const loss = "The run stops, and everything that it has not saved is lost.";
    const isAgreed = await ask(`Cancel ${run}?`, [loss], `tfcluster cancel ${run} -c ${cluster}`, "Cancel the run");
    if (isAgreed) await post("/api/cancel", { run });
  });
}

export function restartTask(cluster, task) {
  return attempt(async () => {
    let accepted = null;
    for (;;) {
      const plan = await post("/api/restart", { task, accepted });
      if (plan.restarts) return;
      const details = plan.losses.length ? ["This is lost:", ...plan.losses] : ["Nothing is lost."];
      const command = `tfcluster restart ${task}${plan.losses.length ? " --yes" : ""} -c ${cluster}`;
      if (!(await ask(`Restart ${task}?`, details, command, "Restart"))) return;
      accepted = plan.losses;
    }
  });
}
