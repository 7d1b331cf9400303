// Keeps a setting of the picture to start from, as a text; `start/tools.js` shows and changes it.
// Gradio runs this once, with `element`, `props` and `watch` of the part of the page it belongs to.
const tell = () => element.dispatchEvent(new CustomEvent("start-field", { bubbles: true }));

element.addEventListener("asked", ({ detail }) => { detail.value = props.value ?? ""; });
element.addEventListener("given", ({ detail }) => {
  props.value = detail;
  tell();
});
watch("value", tell);
