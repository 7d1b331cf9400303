// Keeps this part's value in the storage of the tab, which no other tab shares. Each link that the
// tab opened has a value of its own, so that Back leads to what was there before.
// Gradio runs this once, with `element`, `props`, `trigger` and `watch` of the part of the page it belongs to.
const source = element.closest("gradio-app")?.getAttribute("src") ?? location.pathname;
const given = [...new URLSearchParams(location.search)];
const link = new URLSearchParams(given.filter(([name]) => props.settings.includes(name)));
const { tells } = props;
// Elements of one document that show the same page have a value each.
const place = [...document.querySelectorAll("gradio-app")].indexOf(element.closest("gradio-app"));
const key = `${props.storage_key} ${source}?${link}${place > 0 ? ` ${place}` : ""}`;

// A link that is opened comes before what was kept; at a reload, Back or Forward it does not.
const [{ type: navigation }] = performance.getEntriesByType("navigation");
const isOpenedByLink = navigation === "navigate" && String(link);

try {
  if (isOpenedByLink) sessionStorage.removeItem(key);
  props.value = JSON.parse(sessionStorage.getItem(key));
} catch {
  // nothing was kept, or this browser keeps nothing
}

// The page sets `opened` as soon as all of its parts are there; a text may have been typed by then.
const isDue = { kept: props.value, linked: !props.value && String(link) }[tells];
watch("opened", () => { if (isDue) trigger("select"); });

const keep = () => {
  // `live.js` draws with these values.
  const detail = { name: props.storage_key, value: props.value };
  element.dispatchEvent(new CustomEvent("sdxl-kept", { bubbles: true, detail }));
  try {
    // An older value must not come back if there is no room for this one.
    sessionStorage.removeItem(key);
    if (props.value) sessionStorage.setItem(key, JSON.stringify(props.value));
  } catch {
    // the storage is full or closed to this page
  }
};
watch("value", keep);

// Other scripts of the page ask for the value, and give another one.
element.addEventListener("asked", ({ detail }) => { detail.value = props.value; });
element.addEventListener("given", ({ detail }) => {
  props.value = detail;
  keep();
});
