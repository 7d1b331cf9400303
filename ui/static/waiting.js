// A prompt that is entered while pictures are drawn: it waits, and is sent when they are finished.
// Gradio runs this once, with `element` and `trigger` of the part of the page it belongs to.
const TWICE_MS = 500; // a repeated Enter within this time is the rest of a double press
const BEGINS_MS = 2000; // time in which Stop appears after a prompt was sent
const PAUSE_MS = 100; // lets Gradio render the end of one request before the next one begins

const page = element.closest(".gradio-container"); // may be embedded in another page
let waiting = "";
let sent = -Infinity; // when the last prompt that waited was sent
let last = { prompt: null, at: -Infinity }; // the last Enter

const draws = () => Boolean(page.querySelector("#status .running")) || performance.now() - sent < BEGINS_MS;

const show = (prompt) => {
  waiting = prompt;
  const note = element.querySelector("[data-next]");
  note.textContent = prompt && `${note.dataset.next} `;
  if (prompt) note.appendChild(document.createElement("bdi")).textContent = prompt;
};

const send = () => {
  if (!waiting || draws()) return;
  const prompt = waiting;
  show("");
  sent = performance.now();
  trigger("select", prompt);
};

// Cancelled if the prompt waits or repeats the previous one; otherwise Gradio sends it.
element.addEventListener("entered", (event) => {
  const { prompt, repeat } = event.detail;
  const at = performance.now();
  const again = repeat || (prompt === last.prompt && at - last.at < TWICE_MS);
  last = { prompt, at };
  if (!waiting && !draws()) return;
  event.preventDefault();
  if (!again) show(prompt.trim());
});

page.addEventListener("click", ({ target }) => {
  if (target.closest?.("#stop")) show("");
});

let later;
new MutationObserver(() => {
  if (page.querySelector("#status .running")) sent = -Infinity;
  if (!waiting || draws()) return;
  clearTimeout(later);
  later = setTimeout(send, PAUSE_MS);
}).observe(page, { subtree: true, childList: true });
