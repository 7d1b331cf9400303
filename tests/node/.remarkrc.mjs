// Links between documents, their headings, and their Markdown: `make lint` runs remark with this.
export default {
  settings: { bullet: "-", emphasis: "*", rule: "-" },
  plugins: [
    "remark-frontmatter",
    "remark-gfm",
    "remark-preset-lint-recommended",
    ["remark-lint-no-literal-urls", false],
    ["remark-validate-links", { repository: false }],
  ],
};
