() => {
  // What the page does in the browser alone: keys, the focus, copying, and names for screen readers.
  // Gradio calls this function once.
  const root = document.documentElement;
  if (root.dataset.sdxl) return;
  root.dataset.sdxl = "ready";

  // In a frame of another page, which has a heading and a foot of its own.
  const compact = new URLSearchParams(location.search).get("embed") === "1";
  root.classList.toggle("sdxl-compact", compact);

  // Where the program is, of which a part is shown: on pages of others it is elsewhere.
  const home = (part) => {
    const source = part.closest("gradio-app")?.getAttribute("src");
    return new URL(source ? source.replace(/\/?$/, "/") : location.pathname, location.href);
  };

  const press = (id) => {
    const button = document.getElementById(id);
    if (!button || !button.offsetParent) return false;
    button.click();
    return true;
  };

  const closePicture = () => {
    const close = document.querySelector("#gallery .preview [aria-label='Close']");
    close?.click();
    return close;
  };

  // Before the fields see it: in some of them Enter has a meaning of its own.
  document.addEventListener("keydown", (event) => {
    // Held down, a key presses once, and not what comes in the place of what it pressed.
    if (event.repeat && event.target.closest?.("#generate, #stop")) event.preventDefault();
    const runs = event.key === "Enter" && (event.ctrlKey || event.metaKey);
    if (runs && !event.repeat && press("generate")) {
      event.preventDefault();
      event.stopPropagation();
    }
  }, true);
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || event.defaultPrevented || press("stop") || closePicture()) return;
    // What was sent just now has no Stop yet; unless something else is done, it is waited for.
    const again = setInterval(() => { if (press("stop")) clearInterval(again); }, 50);
    const enough = () => clearInterval(again);
    setTimeout(enough, 2000);
    for (const other of ["keydown", "pointerdown"]) {
      document.addEventListener(other, enough, { once: true, capture: true });
    }
  });

  // Gradio notes a press a moment late: as soon as there is Stop. Of several till then the first
  // counts.
  let pressed = -Infinity;
  document.addEventListener("click", (event) => {
    if (!event.target.closest?.("#generate, #new-seed")) return;
    if (event.timeStamp - pressed < 500) event.stopPropagation();
    else pressed = event.timeStamp;
  }, true);

  const copy = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {  // there is no clipboard on pages that come without encryption
      const field = document.body.appendChild(document.createElement("textarea"));
      field.value = text;
      field.select();
      document.execCommand("copy");
      field.remove();
    }
  };

  document.addEventListener("click", async (event) => {
    const button = event.target.closest?.("[data-copy], [data-link]");
    if (!button) return;
    const { copy: text, link } = button.dataset;
    await copy(text ?? new URL(link, home(button)).href);
    const said = button.textContent;
    if (said === button.dataset.copied) return;
    button.textContent = button.dataset.copied;
    setTimeout(() => { button.textContent = said; }, 1500);
  });

  // Gradio neither translates everything nor has it pictures for choices; the heading knows both.
  const dress = () => {
    const told = document.querySelector("#header [data-page]")?.dataset.page;
    const { names, pictures } = JSON.parse(told || '{ "names": {}, "pictures": {} }');
    for (const part of document.querySelectorAll("#style label span, #history [data-named]")) {
      part.dataset.named ||= part.textContent;
      const name = names[part.dataset.named] ?? part.dataset.named;
      if (part.textContent !== name) part.textContent = name;
    }
    for (const label of document.querySelectorAll("#style label:not([data-pictured])")) {
      const picture = pictures[label.querySelector("input").value];
      if (!picture) continue;
      label.dataset.pictured = "";
      label.style.setProperty("--picture", `url("${new URL(picture, home(label))}")`);
    }
  };

  // When what has the focus disappears, the focus goes to what is there instead.
  let focused = null;
  let picture = 0; // the one that is open, or was
  document.addEventListener("focusin", ({ target }) => { focused = target; });
  const heir = () => {
    if (focused.closest("#generate, #stop")) return document.querySelector("#generate, #stop");
    const open = focused.closest(".preview, #picked");
    return open && document.querySelectorAll("#gallery .thumbnail-lg")[picture];
  };
  const keepFocus = () => {
    const opened = [...document.querySelectorAll("#gallery .thumbnail-small")];
    if (opened.length) picture = opened.findIndex((each) => each.matches(".selected"));
    if (focused && !focused.isConnected && document.activeElement === document.body) heir()?.focus();
  };

  // Gradio names these otherwise than they read, or what is only decoration; and says captions twice.
  // And the page's language is that of its heading.
  const mend = () => {
    root.lang = document.querySelector("#header [lang]")?.lang || root.lang;
    if (document.getElementById("stop")) pressed = -Infinity;
    const misnamed = "#gallery .empty, #gallery .thumbnail-lg, .upload-container";
    for (const part of document.querySelectorAll(misnamed)) part.removeAttribute("aria-label");
    const captions = "#gallery .thumbnail-lg .caption-label";
    for (const caption of document.querySelectorAll(captions)) caption.ariaHidden = "true";
    for (const link of document.querySelectorAll("gradio-app[src] .downloads a")) {
      link.href = new URL(link.getAttribute("href"), home(link));
    }
    dress();
    keepFocus();
  };
  const changes = { subtree: true, childList: true, attributeFilter: ["aria-label"] };
  new MutationObserver(mend).observe(document.body, changes);
  mend();
}
