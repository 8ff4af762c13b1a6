// Requests to this server, with the key if there is one. Owner of the key, which lives as long as the browser tab.

const STORED = "sojourn-key";

export const apiKey = () => sessionStorage.getItem(STORED);

export function setApiKey(key) {
  sessionStorage.setItem(STORED, key);
}

/** fetch with the Authorization header, never from the browser's cache. Paths count from where this server's root is, which
 * behind a proxy need not be the root of the host. */
export function request(path, options = {}) {
  const key = apiKey();
  const headers = { ...options.headers, ...(key === null ? {} : { authorization: `Bearer ${key}` }) };
  return fetch(new URL(`..${path}`, import.meta.url), { cache: "no-store", ...options, headers });
}

/** The JSON of a GET, or an Error with the server's own message. */
export async function getJson(path) {
  const reply = await request(path);
  const body = await reply.json();
  if (!reply.ok) throw new Error(body.error?.message ?? `${reply.status}`);
  return body;
}

/** Saves what a GET answers as a file. */
export async function download(path, name) {
  const reply = await request(path);
  if (!reply.ok) throw new Error(`${reply.status}`);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await reply.blob());
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}
