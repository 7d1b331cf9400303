// The parts of a prompt that a model ignores.
import assert from "node:assert/strict";
import { test } from "node:test";

import { ignored } from "../../ui/static/words.js";

const parts = (text, read) => ignored(text, read).map(([from, to]) => text.slice(from, to));

test("unknown words are found wherever they are, in any case", () => {
  assert.deepEqual(parts("a Sofa, (sofa:1.3) sofas", { words: ["sofa"] }), ["Sofa", "sofa"]);
  assert.deepEqual(parts("twenty-one sofa-beds", { words: ["sofa-beds", "one"] }), ["sofa-beds"]);
  assert.deepEqual(parts("e\u0301tude", { words: ["\u00e9tude"] }), ["e\u0301tude"]);
});

test("signs are whole, whatever they are made of", () => {
  for (const sign of ["🦊", "👨‍👩‍👧", "👍🏽", "🇩🇪", "❤️", "🏴󠁧󠁢󠁳󠁣󠁴󠁿"]) {
    assert.deepEqual(parts(`a ${sign}, b`, { words: [sign] }), [sign]);
  }
  assert.deepEqual(parts("👨‍👩‍👧", { words: ["👨"] }), []);
});

test("a word that was changed since is no longer dimmed", () => {
  assert.deepEqual(parts("a sofabed", { words: ["sofa"] }), []);
  assert.deepEqual(parts("", { words: ["sofa"], leftOut: "sofa" }), []);
});

test("the end that is left out is found whatever its spaces and case", () => {
  const read = { leftOut: "don ' t , a fox" };
  assert.deepEqual(parts("a cat. Don't, a FOX\n", read), ["Don't, a FOX\n"]);
  assert.deepEqual(parts("a cat. Don't, a fox too", read), []);
  assert.deepEqual(parts("fox", read), []);
  assert.deepEqual(parts("a ספה ירח", { leftOut: "\uFFFD ה ירח" }), ["ה ירח"]);
});

test("words of the style are not looked for in what was typed", () => {
  const added = ", anime, soft";
  assert.deepEqual(parts("a cat, a fox", { leftOut: "fox , anime , soft", added }), ["fox"]);
  assert.deepEqual(parts("a cat, soft", { leftOut: "soft", added }), []);
});

test("unknown words in the end that is left out belong to it", () => {
  assert.deepEqual(parts("a fox, a fox", { words: ["fox"], leftOut: ", a fox" }), ["fox", ", a fox"]);
});

test("parts without effect are found as they are written", () => {
  const without = ["<hypernet:foo:1>", "AND", "# (a note"];
  assert.deepEqual(
    parts("BRAND AND a<hypernet:foo:1> sofa # (a note\nb", { without, words: ["sofa", "note"] }),
    ["AND", "<hypernet:foo:1>", "sofa", "# (a note"],
  );
});

test("the end that is left out is found beside tags and parts without effect", () => {
  const read = { leftOut: "a fox", without: ["# red"] };
  assert.deepEqual(parts("a cat, a <lora:b:1> fox # red", read), ["a <lora:b:1> fox # red"]);
});

test("a text of any length is read to its end", () => {
  for (const unit of ["a", "a-", "a\u0301", "\u200D", "👨\u200D", "🇩", "-'", " "]) {
    const long = unit.repeat(500_000);
    assert.deepEqual(ignored(long, { words: ["sofa"], leftOut: `b${long}` }), []);
  }
});
