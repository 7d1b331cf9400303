// Keeps this part's value, a choice, in the browser.
// Gradio runs this once, with `props` and `watch` of the part of the page it belongs to.
const KEY = "sdxl-embed";

try {
  const kept = localStorage.getItem(KEY);
  if (props.choices.includes(kept)) props.value = kept;
} catch {
  // this browser keeps nothing
}

watch("value", () => {
  try {
    localStorage.setItem(KEY, props.value);
  } catch {
    // the storage is full or closed to this page
  }
});
