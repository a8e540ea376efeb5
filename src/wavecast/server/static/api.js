"use strict";
// What both pages need: elements, and the API of the server.
const byId = id => document.getElementById(id);

function made(name, text, attributes = {}) {
  const element = document.createElement(name);
  if (text !== null) element.textContent = text;
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

const wavecastApi = {
  async get(path, signal) { return this.answer(await fetch(path, { signal })); },
  async post(path, body, type, signal) {
    return this.answer(await fetch(path, { method: "POST", body, headers: { "content-type": type }, signal }));
  },
  async answer(response) {
    if (response.status === 204) return null;
    const body = await response.json().catch(() => ({}));
    if (response.ok) return body;
    const error = new Error(body.error?.message ?? `The server answered with ${response.status}`);
    error.retry = response.status === 503 ? Number(response.headers.get("retry-after") ?? 2) : 0;
    throw error;
  },

  // Parts of the answer are HTML that the server made of escaped texts; the page's policy runs no script in them.
  put(id, html) {
    const template = document.createElement("template");
    template.innerHTML = html ?? "";
    byId(id).replaceChildren(template.content);
  },
};
