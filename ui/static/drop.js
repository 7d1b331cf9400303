() => {
  // Pictures that are dropped or pasted anywhere, and settings that are pasted as a long text: the
  // panel of pictures opens and shows the settings found.

  const placeIn = async (panel) => {
    around(panel).querySelector("#chip-picture[aria-expanded='false']")?.click();
    for (let tries = 0; tries < 100; tries++) {
      const place = panel.querySelector("#restore-picture input[type=file]");
      if (place) return place;
      await new Promise((wake) => setTimeout(wake, 50)); // created only when it is to be visible
    }
    return null;
  };
  const read = async (file, panel) => {
    const first = new DataTransfer();
    first.items.add(file);
    const place = await placeIn(panel);
    if (!place) return;
    // Tell the drop zone that nothing is dragged over it any more.
    place.parentElement.dispatchEvent(new DragEvent("drop", { dataTransfer: new DataTransfer() }));
    place.files = first.files;
    place.dispatchEvent(new Event("change", { bubbles: true }));
    panel.scrollIntoView({ block: "start" });
  };

  // Outside the drop zone the browser would otherwise leave the page and open the file. Something
  // dragged from a page, unlike a file, also has the type text/html.
  const given = ({ target, dataTransfer }) => {
    const types = dataTransfer?.types ?? [];
    const isFile = types.includes("Files") && !types.includes("text/html");
    return isFile ? around(target)?.querySelector("#panel-picture") : null;
  };
  document.addEventListener("dragover", (event) => {
    if (given(event)) event.preventDefault();
  }, true);
  document.addEventListener("drop", (event) => {
    const panel = given(event);
    if (!panel) return;
    swallow(event);
    read(event.dataTransfer.files[0], panel);
  }, true);

  // Some programs put a picture of a text beside the text: a text field takes the text.
  const pastedPicture = ({ target, clipboardData: { files, types } }) => {
    const isField = target.matches?.("textarea, input, [contenteditable]");
    if (isField && types.includes("text/plain")) return null;
    return [...files].find(({ type }) => type.startsWith("image/"));
  };
  // The prompt would cut off the end of a long text, where its settings are.
  const pastedSettings = ({ target, clipboardData }) => {
    if (!target.matches?.("#prompt textarea")) return null;
    const text = clipboardData.getData("text/plain");
    const isLong = target.maxLength > 0 && text.length > target.maxLength;
    return isLong && /\nSteps: *\d/.test(text) ? text : null;
  };
  document.addEventListener("paste", async (event) => {
    const panel = around(event.target)?.querySelector("#panel-picture");
    if (!panel || !event.clipboardData) return;
    const picture = pastedPicture(event);
    const text = pastedSettings(event);
    if (!picture && !text) return;
    swallow(event);
    if (picture) {
      read(picture, panel);
      return;
    }
    await placeIn(panel);
    const field = panel.querySelector("#restore-text textarea");
    field.value = text;
    field.dispatchEvent(new Event("input", { bubbles: true }));
    panel.scrollIntoView({ block: "start" });
  }, true);

  // A file that cannot be read is refused before it is sent, with the page's own message.
  const isUnfit = ({ name, size }, place, most) => {
    const kinds = place.accept.split(",").map((kind) => kind.trim());
    if (!kinds.some((kind) => name.toLowerCase().endsWith(kind))) return "unreadable";
    return size > most && "too large";
  };
  document.addEventListener("change", (event) => {
    const place = event.target;
    const app = place.closest?.("#restore-picture") && around(place);
    if (!app || !place.files?.length) return;
    const { most } = JSON.parse(app.querySelector("#header [data-page]").dataset.page);
    const why = isUnfit(place.files[0], place, most);
    if (!why) return;
    swallow(event);
    place.value = "";
    const said = app.querySelector("#restored .prose");
    said.dispatchEvent(new CustomEvent("refused", { bubbles: true, detail: why }));
  }, true);
}
