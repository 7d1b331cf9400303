// Says which words the model does not know, a moment after the last change: a word that is half typed
// is none. The note itself stays in its place, so that screen readers hear what it says.
// Gradio runs this once, with `element` and `watch` of the line that it belongs to.
const PAUSE_MS = 800;

const note = document.createElement("div");
note.className = "unknown";
note.role = "status";
element.after(note);

let due;
const say = () => {
  note.textContent = element.querySelector("[data-unknown]")?.dataset.unknown ?? "";
};
watch("value", () => {
  clearTimeout(due);
  due = setTimeout(say, PAUSE_MS);
});
say();
