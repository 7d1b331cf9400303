// The state of a page and its changes.
import assert from "node:assert/strict";
import { test } from "node:test";

import { BEGINS_MS, DOUBLE_MS, Store, initial, isBusy, reduce } from "../../ui/static/state.js";

const after = (...actions) => actions.reduce(
  (state, [type, details]) => reduce(state, { type, ...details }), initial);
const RUNNING = '<div class="running" role="status"></div>';
const named = (id) => `<div class="running" data-request="${id}" role="status"></div>`;
const ENDED = '<p class="note">4 pictures</p>';

test("the request that the strip names is followed", () => {
  const state = after(["strip", { html: named("a") }]);
  assert.equal(state.followed, "a");
  assert.ok(state.running);
  assert.ok(!state.broken);
});

test("progress of a request names none, and changes nothing else", () => {
  const state = after(["strip", { html: named("a") }], ["strip", { html: RUNNING }]);
  assert.equal(state.followed, "a");
  assert.ok(state.running);
});

test("a request that was lost out of sight stays broken until another one begins", () => {
  const lost = [["strip", { html: named("a") }], ["lost"], ["back"]];
  assert.ok(after(...lost).broken);
  assert.ok(!after(...lost).away);
  assert.ok(!after(...lost, ["strip", { html: named("b") }]).broken);
});

test("the same request is followed again after its end", () => {
  const state = after(["strip", { html: named("a") }], ["ended"], ["strip", { html: ENDED }]);
  assert.equal(state.followed, "");
  assert.ok(!state.running);
  assert.equal(reduce(state, { type: "strip", html: named("a") }).followed, "a");
});

test("a prompt is sent at once if nothing is drawn", () => {
  const state = after(["entered", { prompt: "a star", repeat: false, at: 0 }]);
  assert.ok(!state.isIgnored);
  assert.equal(state.next, "");
});

test("a prompt waits while something is drawn, and the newest one counts", () => {
  const running = ["strip", { html: RUNNING }];
  const first = ["entered", { prompt: " a star ", repeat: false, at: 0 }];
  const second = ["entered", { prompt: "a moon", repeat: false, at: 1 }];
  assert.ok(after(running, first).isIgnored);
  assert.equal(after(running, first).next, "a star");
  assert.equal(after(running, first, second).next, "a moon");
  assert.equal(after(running, first, ["stopped"]).next, "");
});

test("the rest of a double press does not wait", () => {
  const first = ["entered", { prompt: "a star", repeat: false, at: 0 }];
  const running = ["strip", { html: RUNNING }];
  const rest = (at, repeat = false) => after(first, running, ["entered", { prompt: "a star", repeat, at }]);
  assert.equal(rest(DOUBLE_MS - 1).next, "");
  assert.ok(rest(DOUBLE_MS - 1).isIgnored);
  assert.equal(rest(DOUBLE_MS).next, "a star");
  assert.equal(rest(DOUBLE_MS, true).next, "");
});

test("a prompt that was sent is busy until it is shown, or for a while", () => {
  const state = after(["sent", { at: 100 }]);
  assert.ok(isBusy(state, 100 + BEGINS_MS - 1));
  assert.ok(!isBusy(state, 100 + BEGINS_MS));
  const shown = reduce(reduce(state, { type: "strip", html: RUNNING }), { type: "strip", html: ENDED });
  assert.ok(!isBusy(shown, 101));
});

test("only the first press counts until the strip shows the request", () => {
  const first = ["pressed", { at: 0, detail: 1 }];
  assert.ok(!after(first).isIgnored);
  assert.ok(after(first, ["pressed", { at: DOUBLE_MS - 1, detail: 1 }]).isIgnored);
  assert.ok(after(first, ["pressed", { at: 10_000, detail: 2 }]).isIgnored);
  assert.ok(!after(first, ["pressed", { at: DOUBLE_MS, detail: 1 }]).isIgnored);
  const shown = ["strip", { html: RUNNING }];
  assert.ok(!after(first, shown, ["pressed", { at: 1, detail: 1 }]).isIgnored);
});

test("a click on what appears under the pointer is the rest of a double click", () => {
  const generate = ["aimed", { id: "generate", at: 0, detail: 1 }];
  const stop = (at, detail = 1) => ["aimed", { id: "stop", at, detail }];
  assert.ok(!after(stop(0)).isIgnored);
  assert.ok(after(generate, stop(DOUBLE_MS - 1)).isIgnored);
  assert.ok(after(generate, stop(9_000, 2)).isIgnored);
  assert.ok(!after(generate, stop(DOUBLE_MS)).isIgnored);
  // An ignored click counts as one on the button before.
  assert.ok(after(generate, stop(400), stop(800)).isIgnored);
  assert.ok(!after(generate, ["aimed", { id: "generate", at: 1, detail: 1 }]).isIgnored);
});

test("a store tells of the new state and the one before", () => {
  const store = new Store();
  const told = [];
  store.subscribe((state, before) => told.push([before.panel, state.panel]));
  store.dispatch("panel", { name: "style" });
  assert.equal(store.dispatch("panel", { name: "" }).panel, "");
  assert.deepEqual(told, [["", "style"], ["style", ""]]);
  assert.equal(store.state.panel, "");
});
