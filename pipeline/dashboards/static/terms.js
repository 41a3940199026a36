"use strict";
// Explains words of the page: terms of the glossary, alert conditions, rules and names of codes, as tooltips.

const TERMS = SITE.terms;
const LARGEST_WORDS = Object.keys(TERMS.glossary).sort((a, b) => b.length - a.length);
const WORDS = new RegExp(`(?<![\\w-])(?:${LARGEST_WORDS.map((each) => each.replace(/[^\w ]/g, "\\$&")).join("|")})(?=e?s?(?![\\w-]))`, "gi");

/** What a value means: an alert condition, a rule, or a term of the glossary; null if it is none. */
const meaningOfValue = (text) => [TERMS.conditions, TERMS.rules, TERMS.glossary].find((each) => Object.hasOwn(each, text))?.[text] ?? null;

/** What the terms of the glossary in a text mean; null if it has none. */
function meaningOf(text) {
  const found = [...new Set([...text.replaceAll("_", " ").matchAll(WORDS)].map((each) => each[0].toLowerCase()))];
  return found.length ? found.map((term) => `${term}: ${TERMS.glossary[term]}`).join("\n\n") : null;
}

/** The name of a rule: its identifier with what it demands. */
const ruleText = (rule) => (Object.hasOwn(TERMS.rules, rule) ? `${rule}: ${TERMS.rules[rule]}` : rule);

/** A code, result of a method or status of a fault, in hexadecimal and by its name. */
function codeText(code) {
  const hex = "0x" + pad(code.toString(16).toUpperCase(), 8);
  return Object.hasOwn(TERMS.codes, code) ? `${TERMS.codes[code]} (${hex})` : hex;
}

const EXPLAINED = "h2, th button, th:not(:has(button)), dt, .tile .label, .badge, [data-term]";
/** Give headings, labels and badges below an element what their words mean, after the title that they have. */
function explain(root) {
  for (const element of root.querySelectorAll(EXPLAINED)) {
    const text = element.textContent.trim();
    const isValue = element.matches(".badge, [data-term]") || text === text.toUpperCase();
    const meaning = isValue ? meaningOfValue(text) : meaningOf(text);
    if (meaning === null || element.title.includes(meaning)) continue;
    element.title = [element.title, meaning].filter((each) => each).join("\n\n");
    element.classList.add("explained");
  }
}

/** All terms of the glossary with their meanings, as a list. */
const glossaryList = () => h("dl", { class: "facts" }, Object.keys(TERMS.glossary).sort().map((term) => [h("dt", {}, term), h("dd", {}, TERMS.glossary[term])]));
