// The page's language: English or Chinese, from the browser unless chosen here. Owner of the choice; texts are in lang_*.js.

import { setNumberLanguage } from "./format.js";
import en from "./lang_en.js";
import zh from "./lang_zh.js";

const STORED = "sojourn-language";
const texts = { en, zh };
let current = localStorage.getItem(STORED) ?? (navigator.language.toLowerCase().startsWith("zh") ? "zh" : "en");
apply();

export const language = () => current;

export function setLanguage(language) {
  current = language;
  localStorage.setItem(STORED, language);
  apply();
}

function apply() {
  document.documentElement.lang = current === "zh" ? "zh-CN" : "en";
  setNumberLanguage(document.documentElement.lang);
}

/** The text for a key, with {name} replaced by values. */
export function t(key, values = {}) {
  const text = texts[current][key];
  if (text === undefined) throw new Error(`no text for ${key}`);
  return text.replace(/\{(\w+)\}/g, (_, name) => values[name]);
}

/** The text for a name the server sends: one this page does not know yet is shown as it is. */
export const named = (group, name) => texts[current][`${group}.${name}`] ?? String(name);
