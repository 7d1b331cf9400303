// This browser's own requests: kept in its storage, shown as a list, and sent nowhere.
// Gradio runs this once, with `element` and `trigger` of the part of the page it belongs to.
const KEY = "sdxl-history";
const MOST = 30;
const SIDE = 96; // of a thumbnail, in pixels

const page = element.closest(".gradio-container"); // which may be a part of another's
const entered = new Set(); // ids of requests, also of those that were cleared since

// Anything may stand there: another version of this page wrote it, or another page of this address.
const isEntry = (entry) => (
  ["id", "link", "said"].every((name) => typeof entry?.[name] === "string")
  && Number.isFinite(new Date(entry.at).getTime())
  && ["string", "undefined"].includes(typeof entry.look)
);

const read = () => {
  try {
    const kept = JSON.parse(localStorage.getItem(KEY));
    return Array.isArray(kept) ? kept.filter(isEntry) : [];
  } catch {
    return []; // nothing was kept, or this browser keeps nothing
  }
};

// The oldest go when there are too many, or no more room.
const write = (entries) => {
  for (let kept = entries.slice(0, MOST); ; kept = kept.slice(0, -1)) {
    try {
      localStorage.setItem(KEY, JSON.stringify(kept));
      break;
    } catch {
      if (!kept.length) break;
    }
  }
  show();
};

const add = (parent, tag, text = "") => {
  const child = parent.appendChild(document.createElement(tag));
  child.textContent = text; // and so never as HTML
  return child;
};

const row = (entry) => {
  const item = document.createElement("li");
  const button = add(item, "button");
  button.type = "button";
  if (entry.look?.startsWith("data:image/jpeg;")) {
    Object.assign(add(button, "img"), { src: entry.look, alt: "" });
  }
  add(button, "span", new URLSearchParams(entry.link).get("prompt"));
  const when = new Date(entry.at).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
  add(button, "small", `${entry.said} · ${when}`);
  button.addEventListener("click", () => {
    // While something is drawn, its pictures stay in view.
    const busy = page.querySelector("#stop")?.offsetParent;
    trigger("select", { link: entry.link, id: busy ? "" : entry.id });
  });
  return item;
};

const show = () => {
  const entries = read();
  element.querySelector("details").hidden = !entries.length;
  element.querySelector("ol").replaceChildren(...entries.map(row));
};

// All pictures side by side, each cut to a square.
const look = async (addresses) => {
  const canvas = document.createElement("canvas");
  canvas.width = SIDE * addresses.length;
  canvas.height = SIDE;
  for (const [i, address] of addresses.entries()) {
    const image = new Image();
    image.crossOrigin = "anonymous"; // what comes from elsewhere is not to be read otherwise
    image.src = address;
    await image.decode();
    const { naturalWidth: width, naturalHeight: height } = image;
    const side = Math.min(width, height);
    canvas.getContext("2d").drawImage(
      image, (width - side) / 2, (height - side) / 2, side, side, i * SIDE, 0, SIDE, SIDE);
  }
  return canvas.toDataURL("image/jpeg", 0.8);
};

// Where the gallery has these files from, once it shows them all.
const shown = async (files) => {
  for (let tries = 0; tries < 100; tries++) {
    const addresses = [...page.querySelectorAll("#gallery img")].map((image) => image.src);
    const found = files.map((file) => addresses.find((address) => address.endsWith(file)));
    if (found.every(Boolean)) return found;
    await new Promise((wake) => setTimeout(wake, 100));
  }
  throw new Error("other pictures are shown");
};

element.addEventListener("told", async ({ detail: told }) => {
  const known = (entries) => entries.find((entry) => entry.id === told?.id);
  // What is told first may be lost when other requests end at that moment: so it is told again,
  // and must not bring back an entry that was cleared since.
  if (told?.link && !entered.has(told.id) && !known(read())) {
    entered.add(told.id);
    write([{ id: told.id, link: told.link, said: told.said, at: Date.now() }, ...read()]);
  }
  if (told?.drawn && known(read()) && !known(read()).look) {
    const found = await shown(told.drawn).then(look).catch(() => null);
    const entries = read(); // which may have changed, in another window or because it was cleared
    if (found && known(entries)) {
      known(entries).look = found;
      write(entries);
    }
  }
});

element.addEventListener("click", (event) => {
  if (!event.target.closest("[data-clear]")) return;
  write([]);
  page.querySelector("#prompt textarea")?.focus();
});

addEventListener("storage", show);
show();
