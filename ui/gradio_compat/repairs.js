// Repairs of Gradio's markup, for screen readers and for other languages.
// The page's heading has the language and the translated names.
import { alone, forEachApp } from "../static/app.js";

// Translates texts that Gradio has in English only, or does not translate. # stands for a number.
const translate = (app) => {
  const { names } = app.data;
  for (const part of app.all("#gallery button, .reset-button")) {
    for (const attribute of ["aria-label", "title"]) {
      const english = part.getAttribute(attribute) ?? "";
      const name = names[english.replace(/\d+/g, "#")];
      if (!name) continue; // there is no translation, or it is in place
      part.dataset.named = english;
      const numbers = english.match(/\d+/g);
      const translated = name.replace(/#/g, () => numbers.shift());
      if (translated !== english) part.setAttribute(attribute, translated);
    }
  }
};

// Gradio gives some parts names that differ from their text, names decoration, prefixes the names of a
// slider's two parts in English (their roles tell them apart), and repeats captions.
const rename = (app) => {
  const misnamed = "#gallery :is(.empty, .thumbnail-lg, .media-button), .upload-container, footer";
  for (const part of app.root.querySelectorAll(misnamed)) part.removeAttribute("aria-label");
  const ofSliders = ":is([aria-label^='number input for '], [aria-label^='range slider for '])";
  for (const part of app.all(ofSliders)) part.ariaLabel = part.ariaLabel.replace(/^.*? for /, "");
  for (const caption of app.all("#gallery .thumbnail-lg .caption-label")) caption.ariaHidden = "true";
};

// Gradio's accordions do not say whether they are open.
const tellOpen = (app) => {
  for (const opener of app.all(".label-wrap")) {
    opener.ariaExpanded = String(opener.matches(".open"));
  }
};

// Gradio writes every text from left to right, unless it is told otherwise for all of them.
const direct = (app) => {
  const fields = ":is(#prompt, #negative, #restore-text) textarea";
  const captions = "#gallery :is(.caption, .caption-label)";
  for (const part of app.all(`${fields}, ${captions}`)) part.dir = "auto";
};

forEachApp((app) => app.whenOpen(() => {
  (alone ? document.documentElement : app.root).lang = app.find("#header h1").lang;
  const repair = () => {
    rename(app);
    tellOpen(app);
    direct(app);
    translate(app);
  };
  // These parts change when they are used; what else is repaired is there from the beginning.
  const attributeFilter = ["aria-label", "class"];
  app.watch("#gallery", repair, { subtree: true, attributeFilter });
  app.watch("#advanced", repair, { subtree: true, attributeFilter: ["class"] });
  app.watch("#ask", repair);
  app.watch("#pictures", repair, {}); // the panel of an opened picture is mounted late
}));
