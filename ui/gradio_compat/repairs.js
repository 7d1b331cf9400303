() => {
  // Repairs of Gradio's markup, for screen readers and for other languages.
  // The page's heading has the language and the translated names.

  // Texts that Gradio has in English only, or does not translate. # stands for a number.
  const translate = (app, names) => {
    for (const part of app.querySelectorAll("#history [data-named]")) {
      part.dataset.named ||= part.textContent;
      const name = names[part.dataset.named] ?? part.dataset.named;
      if (part.textContent !== name) part.textContent = name;
    }
    for (const part of app.querySelectorAll("#gallery button, .reset-button")) {
      for (const attribute of ["aria-label", "title"]) {
        const english = part.getAttribute(attribute) ?? "";
        const name = names[english.replace(/\d+/g, "#")];
        if (!name) continue; // there is no translation, or it is in place
        part.dataset.named = english;
        const numbers = english.match(/\d+/g);
        const own = name.replace(/#/g, () => numbers.shift());
        if (own !== english) part.setAttribute(attribute, own);
      }
    }
  };

  // Gradio gives some parts names that differ from their text, names decoration, prefixes the names
  // of a slider's two parts in English (their roles tell them apart), and repeats captions.
  const rename = (app) => {
    const misnamed = "#gallery :is(.empty, .thumbnail-lg, .media-button), .upload-container, footer";
    for (const part of app.querySelectorAll(misnamed)) part.removeAttribute("aria-label");
    const ofSliders = ":is([aria-label^='number input for '], [aria-label^='range slider for '])";
    for (const part of app.querySelectorAll(ofSliders)) {
      part.ariaLabel = part.ariaLabel.replace(/^.*? for /, "");
    }
    const captions = "#gallery .thumbnail-lg .caption-label";
    for (const caption of app.querySelectorAll(captions)) caption.ariaHidden = "true";
  };

  // Gradio's accordions do not say whether they are open.
  const tellOpen = (app) => {
    for (const opener of app.querySelectorAll(".label-wrap")) {
      opener.ariaExpanded = String(opener.matches(".open"));
    }
  };

  // Gradio writes every text from left to right, unless it is told otherwise for all of them.
  const direct = (app) => {
    const fields = ":is(#prompt, #negative, #restore-text) textarea";
    const captions = "#gallery :is(.caption, .caption-label)";
    for (const part of app.querySelectorAll(`${fields}, ${captions}`)) part.dir = "auto";
  };

  const repair = (app) => {
    const heading = app.querySelector("#header [data-page]");
    if (!heading) return; // it is not there yet, or this app is another program's
    (alone ? root : app).lang = heading.lang;
    rename(app);
    tellOpen(app);
    direct(app);
    translate(app, JSON.parse(heading.dataset.page).names);
  };
  const repairAll = () => document.querySelectorAll("gradio-app").forEach(repair);
  const changes = { subtree: true, childList: true, attributeFilter: ["aria-label", "class"] };
  new MutationObserver(repairAll).observe(document.body, changes);
  repairAll();
}
