// Calls to the server that the page came from.
let key = sessionStorage.getItem("key") ?? "";

export class KeyWanted extends Error {}

export function setKey(value) {
  key = value;
  sessionStorage.setItem("key", value);
}

export async function call(path, options = {}) {
  const headers = {"Content-Type": "application/json", ...(key ? {Authorization: `Bearer ${key}`} : {})};
  const response = await fetch(path, {...options, headers});
  if (response.status === 401) throw new KeyWanted("a key is wanted");
  if (response.ok) return response;
  let message = `${response.status}`;
  try {
    message = (await response.json()).error.message;
  } catch {
    // The status has to do.
  }
  throw new Error(message);
}

export async function* events(response) {
  const decoder = new TextDecoder();
  const reader = response.body.getReader();
  let held = "";
  for (;;) {
    const {done, value} = await reader.read();
    if (done) return;
    held += decoder.decode(value, {stream: true});
    for (let at; (at = held.indexOf("\n\n")) >= 0; held = held.slice(at + 2)) {
      const event = held.slice(0, at);
      if (!event.startsWith("data: ") || event === "data: [DONE]") continue;
      const json = JSON.parse(event.slice(6));
      if (json.error) throw new Error(json.error.message);
      yield json;
    }
  }
}
