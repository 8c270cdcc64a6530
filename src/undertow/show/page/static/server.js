// What the page asks the server for. Addresses are relative: the dashboard may live behind any path.

export class Trouble extends Error {
  constructor(message, wayOut = "", status = 0) {
    super(message);
    this.wayOut = wayOut;
    this.status = status;
  }
}

async function ask(name, query, signal) {
  let answer;
  try {
    answer = await fetch(`api/${name}?${new URLSearchParams(query)}`, { signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Trouble("The dashboard does not answer", "Is `undertow serve` still running?");
  }
  if (answer.ok) return answer;
  const text = await answer.text();
  let said = { problem: text.trim() || answer.statusText };
  try { said = JSON.parse(text); } catch { /* plain words */ }
  throw new Trouble(said.problem, said.way_out, answer.status);
}

const ahead = new Map();

/** Ask now for what a page will ask for as soon as it has been loaded itself. */
export function askAhead(name, query) {
  const answer = getJson(name, query);
  answer.catch(() => {}); // whoever asks in earnest hears of it
  ahead.set(JSON.stringify([name, query]), answer);
}

export async function getJson(name, query = {}, signal = undefined) {
  const key = JSON.stringify([name, query]), early = ahead.get(key);
  ahead.delete(key);
  return early ?? (await ask(name, query, signal)).json();
}

export async function getTile(query, signal) {
  const answer = await ask("tile", query, signal);
  const bytes = await answer.arrayBuffer();
  return { codes: new Uint16Array(bytes), lastStep: Number(answer.headers.get("undertow-last-step")) };
}

const REFUSED = 4000; // milliseconds after which a stream that was refused is asked for again
const NO_CONNECTION = "no connection";
const RESTARTED = "the dashboard was started anew: open the address that it printed";
const PATIENCE = 5000; // milliseconds between two looks at what takes a while to work out

/** Why nothing can be had from the server, in the few words of a badge; "" when it is the run that cannot be read. */
export function cutOff(error) {
  return { 0: NO_CONNECTION, 403: RESTARTED }[error.status] ?? "";
}

/** For a page that is made anew as its run grows: `onAgain` is called now and then, unless somebody `isBusy` with it. */
export function followSlowly(run, onBadge, isBusy, onAgain) {
  let made = Date.now();
  return follow(run.id, (progress) => {
    onBadge(progress.status);
    const typing = document.activeElement?.closest("main input[type=search]") || document.querySelector("dialog[open]");
    if (progress.sequence === run.sequence || Date.now() - made < PATIENCE || typing || isBusy()) return;
    made = Date.now();
    onAgain();
  }, (connected, why) => { if (!connected) onBadge(null, why); });
}

/** News of a run. Returns a function that ends it. */
export function follow(run, onProgress, onConnection) {
  let source = null, later = 0;
  const begin = () => {
    source = new EventSource(`api/live?${new URLSearchParams({ run })}`);
    source.addEventListener("progress", (event) => { onConnection(true); onProgress(JSON.parse(event.data)); });
    source.addEventListener("trouble", (event) => onConnection(false, JSON.parse(event.data).problem));
    source.onerror = () => {
      onConnection(false, NO_CONNECTION);
      if (source?.readyState === EventSource.CLOSED) again();
    };
  };
  // A stream that breaks is taken up by the browser; one that is refused never is, as after a restart of the server.
  const again = () => {
    end();
    ask("run", { run }).catch((error) => onConnection(false, cutOff(error) || error.message));
    later = setTimeout(look, REFUSED);
  };
  const end = () => { clearTimeout(later); source?.close(); source = null; };
  // A browser has six connections to a server, for all its tabs: one that nobody looks at must not hold one.
  const look = () => { if (document.hidden) end(); else if (!source) begin(); };
  document.addEventListener("visibilitychange", look);
  look();
  return () => { document.removeEventListener("visibilitychange", look); end(); };
}
