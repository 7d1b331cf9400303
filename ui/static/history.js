// This browser's own requests: kept in its storage, shown as a list, and sent nowhere.
// Gradio runs this once, with `element` and `trigger` of the part of the page it belongs to.
const KEY = "sdxl-history";
const MOST = 30;
const SIDE = 96; // of a thumbnail, in pixels

const page = element.closest(".gradio-container"); // may be embedded in another page
const entered = new Set(); // ids of requests, including entries that were cleared since

// The storage may hold anything: other versions of this page, or pages of its origin, write it.
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

// Drops the oldest entries if there are too many, or if the storage is full.
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
  child.textContent = text; // never as HTML
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
    // While a request is drawn its pictures stay in view: without an id, only settings return.
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

// Returns one image of all pictures side by side, each cut to a square.
const look = async (addresses) => {
  const canvas = document.createElement("canvas");
  canvas.width = SIDE * addresses.length;
  canvas.height = SIDE;
  for (const [i, address] of addresses.entries()) {
    const image = new Image();
    image.crossOrigin = "anonymous"; // else a canvas with images of another origin cannot be read
    image.src = address;
    await image.decode();
    const { naturalWidth: width, naturalHeight: height } = image;
    const side = Math.min(width, height);
    canvas.getContext("2d").drawImage(
      image, (width - side) / 2, (height - side) / 2, side, side, i * SIDE, 0, SIDE, SIDE);
  }
  return canvas.toDataURL("image/jpeg", 0.8);
};

// Returns the addresses of these files, once the gallery shows them all.
const shown = async (files) => {
  for (let tries = 0; tries < 100; tries++) {
    const addresses = [...page.querySelectorAll("#gallery img")].map((image) => image.src);
    const found = files.map((file) => addresses.find((address) => address.endsWith(file)));
    if (found.every(Boolean)) return found;
    await new Promise((wake) => setTimeout(wake, 100));
  }
  throw new Error("other pictures are shown");
};

element.addEventListener("news", async ({ detail: news }) => {
  const known = (entries) => entries.find((entry) => entry.id === news?.id);
  // The first message about a request may be lost if other requests end at that moment, so it is
  // sent again. The second one must not bring back an entry that was cleared since.
  if (news?.link && !entered.has(news.id) && !known(read())) {
    entered.add(news.id);
    write([{ id: news.id, link: news.link, said: news.said, at: Date.now() }, ...read()]);
  }
  if (news?.drawn && known(read()) && !known(read()).look) {
    const found = await shown(news.drawn).then(look).catch(() => null);
    const entries = read(); // may have changed in another window, or been cleared
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
