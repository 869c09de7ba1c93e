// Calls the server. The token is kept for this tab only, and is sent with every request.

import { percent } from "./dom.js";

const ROOT = new URL("../", location.href.split("#")[0]);
const KEPT = "streamkeep.secret";
let secret = null; // the value of the header Authorization

export class Failed extends Error {
  constructor(status, message, next) {
    super(message);
    this.status = status;
    this.next = next;
  }
}

// Take the token out of the address, where the history of the browser would keep it.
export function takeToken() {
  const given = /^#token=([^&]+)$/.exec(location.hash);
  if (given) {
    setSecret("", decodeURIComponent(given[1]));
    history.replaceState(null, "", "#/");
  } else {
    try { secret = sessionStorage.getItem(KEPT); } catch { secret = null; }
  }
}

export function setSecret(user, text) {
  const bytes = new TextEncoder().encode(`${user}:${text}`);
  secret = user ? `Basic ${btoa(String.fromCharCode(...bytes))}` : `Bearer ${text}`;
  try { sessionStorage.setItem(KEPT, secret); } catch { /* until the page is left, then */ }
}

function headers(more = {}) {
  return secret ? { Authorization: secret, ...more } : more;
}

async function send(method, path, { body, signal } = {}) {
  const options = { method, signal, headers: headers(), cache: "no-store", credentials: "omit" };
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers["Content-Type"] = "application/json";
  }
  let reply;
  try {
    reply = await fetch(new URL(path, ROOT), options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failed(0, "The server does not answer.", "see if it is still running");
  }
  let value = {};
  try {
    value = await reply.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    if (reply.ok) throw new Failed(0, "The reply of the server was cut off.", "try again");
  }
  if (!reply.ok) throw new Failed(reply.status, value.message ?? reply.statusText, value.next);
  return value;
}

export const get = (path, signal) => send("GET", path, { signal });
export const post = (path, body = {}) => send("POST", path, { body });
export const put = (path, body = {}) => send("PUT", path, { body });

export function query(members) {
  return Object.entries(members)
    .filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== false)
    .map(([name, value]) => `${name}=${typeof value === "object" ? percent(value)
      : encodeURIComponent(value === true ? 1 : value)}`).join("&");
}

const RESOLVED = ["", ".", ".."]; // by the browser, if they were a segment of the path

export function streamPath(key, rest = "", members = {}) {
  const special = RESOLVED.includes(key);
  const text = query(members);
  const parts = [special ? `key=${percent(key)}` : "", text].filter(Boolean).join("&");
  return `streams/${special ? "" : percent(key)}${rest && `/${rest}`}${parts && `?${parts}`}`;
}

export function groupPath(key, group, action = "", members = {}) {
  const text = query(members);
  if (RESOLVED.includes(key) || RESOLVED.includes(group)) {
    const names = `key=${percent(key)}&group=${percent(group)}&action=${action}`;
    return `groups/?${names}${text && `&${text}`}`;
  }
  return `groups/${percent(key)}/${percent(group)}${action && `/${action}`}${text && `?${text}`}`;
}

// Follow a stream: calls `onEntry` for each entry, and connects again after the last ID it saw.
export async function follow(key, { signal, onEntry, onState }) {
  let last = null;
  let wait = 500;
  while (!signal.aborted) {
    try {
      const more = { Accept: "text/event-stream", ...(last && { "Last-Event-ID": last }) };
      const reply = await fetch(new URL(streamPath(key, "", { shape: "pairs" }), ROOT),
        { signal, headers: headers(more), cache: "no-store", credentials: "omit" });
      if (!reply.ok) throw new Failed(reply.status, `status ${reply.status}`);
      onState("live");
      wait = 500;
      for await (const event of events(reply.body)) {
        if (event.id) last = event.id;
        if (event.event === "error") throw new Failed(500, JSON.parse(event.data).message);
        if (event.data) onEntry(JSON.parse(event.data));
      }
    } catch (error) {
      if (signal.aborted) return;
      onState("waiting", error.message);
    }
    await new Promise((done) => setTimeout(done, wait));
    wait = Math.min(10000, 2 * wait);
  }
}

// Yield the events of a body, as `EventSource` parses them; it cannot send the token.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const event = {};
      for (const line of part.split("\n")) {
        const at = line.indexOf(":");
        if (at > 0) event[line.slice(0, at)] = line.slice(at + 1).replace(/^ /, "");
      }
      yield event;
    }
  }
}
