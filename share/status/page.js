"use strict";
const $ = id => document.getElementById(id);
const source = location.pathname.replace(/\/*$/, "/json");
const modules = "main,requests,events,ssl,memory,traffic,backends,certificates,reloads,paths";
// Long lists would slow the page down; all of them are in the JSON.
const most = 200;
// As many looks as a chart has points.
const remembered = 60;
const history = {};
let last = null, timer = 0;

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

const number = value => Number(value).toLocaleString("en");

function rate(value) {
  return value >= 100 ? number(Math.round(value)) : value >= 10 || value === 0 ? value.toFixed(0) : value.toFixed(1);
}

function span(seconds) {
  const parts = [[86400, "d"], [3600, "h"], [60, "m"], [1, "s"]];
  const shown = [];
  for (const [unit, letter] of parts) {
    if (seconds >= unit || (shown.length && shown.length < 2)) shown.push(Math.floor(seconds / unit) + letter);
    seconds %= unit;
    if (shown.length === 2) break;
  }
  return shown.join(" ") || "0s";
}

function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  for (; bytes >= 1024 && unit < units.length - 1; unit++) bytes /= 1024;
  return bytes.toFixed(unit && bytes < 100 ? 1 : 0) + " " + units[unit];
}

// The latest values of a name, as a line with the greatest at the top.
function chart(name, value) {
  const values = history[name] ??= [];
  // The first look has only the average since the start.
  if (last) values.push(value);
  if (values.length > remembered) values.shift();
  const picture = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const line = document.createElementNS(picture.namespaceURI, "polyline");
  const most = Math.max(...values) || 1;
  const at = index => remembered - values.length + index;
  line.setAttribute("points", values.map((value, index) => at(index) + "," + (19 - 18 * value / most)).join(" "));
  picture.setAttribute("viewBox", "0 0 " + (remembered - 1) + " 20");
  picture.setAttribute("preserveAspectRatio", "none");
  picture.setAttribute("aria-hidden", "true");
  picture.classList.add("chart");
  picture.append(line);
  return picture;
}

function card(title, value, note, part, picture) {
  const made = element("div", undefined, "card");
  made.append(element("span", title), element("b", value));
  if (part !== undefined) {
    const bar = element("div", undefined, "bar"), fill = element("i");
    fill.style.width = Math.min(100, 100 * part) + "%";
    bar.append(fill);
    made.append(bar);
  }
  if (picture) made.append(picture);
  made.append(element("span", note || "\u00a0"));
  return made;
}

function table(name, columns, rows) {
  $(name + "-head").replaceChildren(element("tr"));
  const titles = rows.length ? columns : [];
  $(name + "-head").rows[0].append(...titles.map(([title, , className]) => element("th", title, className)));
  const made = rows.slice(0, most).map(row => {
    const line = element("tr");
    for (const [, value, className] of columns) {
      const shown = value(row) ?? "";
      const cell = element("td", undefined, className);
      cell.append(shown);
      if (className === "long") cell.title = shown;
      line.append(cell);
    }
    return line;
  });
  const rest = rows.length ? rows.length > most && "and " + number(rows.length - most) + " more" : "none";
  if (rest) {
    const cell = element("td", rest, "none");
    cell.colSpan = columns.length;
    made.push(element("tr"));
    made.at(-1).append(cell);
  }
  $(name).replaceChildren(...made);
}

const priority = r => [r["http2.priority.received.exclusive"], r["http2.priority.received.parent"],
  r["http2.priority.received.weight"]].filter(part => part !== null).join(":");
const id = r => r["connection-id"] + "/" + (r["http1.request-index"] ?? r["http2.stream-id"] ?? "");
const tls = r => r["ssl.protocol-version"] === null ? "" : r["ssl.protocol-version"] + " " + r["ssl.cipher"];
const begun = r => (r.at || "").replace(/^\d{8}T(\d\d)(\d\d)(\d\d)\..*$/, "$1:$2:$3");

const requestColumns = [
  ["id", id], ["begun", begun], ["client", r => r.host], ["method", r => r.method],
  ["URI", r => r.path === null ? "" : r.authority + r.path + (r.query || ""), "long"],
  ["protocol", r => r.protocol], ["priority", priority], ["TLS", tls],
  ["resumed", r => r["ssl.session-reused"] === null ? "" : r["ssl.session-reused"] === "1" ? "yes" : "no"],
  ["referer", r => r.referer, "long"], ["user agent", r => r["user-agent"], "long"],
];

const backendColumns = [
  ["backend", b => b.url, "long"],
  ["health", b => b.up === null ? element("span", "not checked", "faint") : b.up ? element("span", "up", "good") : element("span", "down", "bad")],
  ["weight", b => number(b.weight), "number"],
  ["for", b => b.host + b.path, "long"],
];

const connectionColumns = [
  ["protocol", row => row.name],
  ["active", row => number(row.active), "number"], ["idle", row => number(row.idle), "number"],
  ["ending", row => number(row.shutdown), "number"],
];

function connectionRows(status) {
  const versions = [["HTTP/1", "http1"], ["HTTP/2", "http2"], ["HTTP/3", "http3"]].map(([name, key]) => {
    const [active, idle, shutdown] = ["active", "idle", "shutdown"].map(state => status["connections." + key + "." + state]);
    return { name, active, idle, shutdown };
  });
  const none = { name: "before and after", active: status["connections.opening"], idle: 0, shutdown: status["connections.closing"] };
  return [...versions, none].filter(row => row.active || row.idle || row.shutdown);
}

const pathColumns = [
  ["path", row => row.name, "long"],
  ["per second", row => rate(row.perSecond), "number"],
  ["mean time", row => row.millis === undefined ? "" : row.millis < .01 ? "<0.01 ms" : row.millis.toFixed(row.millis < 10 ? 2 : 0) + " ms", "number"],
  ["5xx", row => row.errors ? element("span", number(row.errors), "bad") : "0", "number"],
  ["requests", row => number(row.requests), "number"],
];

// Mean times are of the requests since the last look, as long as there were any.
function pathRows(status, seconds) {
  const before = new Map((last?.status.paths || []).map(path => [path.host + path.path, path]));
  const rows = status.paths.map(path => {
    const name = path.host + path.path;
    const earlier = before.get(name) || { requests: 0, micros: 0 };
    const count = path.requests - earlier.requests;
    const [micros, of] = count > 0 ? [path.micros - earlier.micros, count] : [path.micros, path.requests];
    const perSecond = last && seconds > .2 ? Math.max(0, count) / seconds : path.requests / Math.max(1, status.uptime);
    return { name, perSecond, millis: of ? micros / of / 1000 : undefined, errors: path.errors, requests: path.requests };
  });
  return rows.sort((a, b) => b.perSecond - a.perSecond || b.requests - a.requests);
}

function daysLeft(certificate) {
  const days = certificate["days-left"];
  if (days < 0) return element("span", "expired", "bad");
  return element("span", number(days) + (days === 1 ? " day" : " days"), days < 7 ? "bad" : days < 21 ? "warn" : "good");
}

const certificateColumns = [
  ["left", daysLeft],
  ["expires", c => new Date(1000 * c["not-after"]).toISOString().slice(0, 10)],
  ["names", c => c.names.join(", "), "long"],
  ["listeners", c => c.listeners.join(", "), "long"],
  ["file", c => c.file, "long"],
];

function showResponses(status) {
  const classes = [["2xx", "c2", "success"], ["3xx", "c3", "redirect, not modified"], ["4xx", "c4", "client error"],
    ["5xx", "c5", "server error"]];
  const counts = classes.map(([name, colour, text]) => [name, colour, text, status["traffic.responses." + name]]);
  const all = counts.reduce((sum, entry) => sum + entry[3], 0);
  $("share").replaceChildren(...counts.filter(entry => entry[3]).map(([, colour, , count]) => {
    const part = element("i", undefined, colour);
    part.style.flexGrow = count / all;
    return part;
  }));
  $("legend").replaceChildren(...counts.map(([name, colour, text, count]) => {
    const item = element("li");
    const share = all ? 100 * count / all : 0;
    const percent = share > 0 && share < .1 ? "<0.1" : share.toFixed(share >= 10 || !share ? 0 : 1);
    item.append(element("i", undefined, colour), name + " " + number(count) + " ", element("span", percent + " %", "faint"));
    item.title = text;
    return item;
  }));
}

function show(status) {
  const now = performance.now();
  const seconds = last ? (now - last.at) / 1000 : 0;
  // Until there is something to compare with: on average since the start.
  const perSecond = name => last && seconds > .2
    ? Math.max(0, status[name] - last.status[name]) / seconds
    : status[name] / Math.max(1, status.uptime);
  const since = last ? "" : " on average";
  $("version").textContent = "h2o " + status["server-version"] + ", " + status["openssl-version"];
  const part = (name, word = name) => number(status["connections." + name]) + " " + word;
  const connections = status.connections, limit = status["max-connections"];
  const inFlight = status.requests.filter(request => request.path !== source);
  const flow = (title, name, shown, total) => {
    const value = perSecond(name);
    return card(title + " per second" + since, shown(value), total(status[name]) + " so far", undefined, chart(name, value));
  };
  const cards = [
    flow("Requests", "traffic.requests", rate, number),
    flow("Sent", "traffic.bytes-sent", size, size),
    flow("Received", "traffic.bytes-received", size, size),
    card("Connections", number(connections), [part("active"), part("idle"), part("shutdown", "ending")].join(", ")
      + "; at most " + number(limit), connections / limit),
    card("Accepted per second" + since, rate(perSecond("num-sessions")), number(status["num-sessions"]) + " connections so far"),
  ];
  const memory = status["memory.resident-bytes"];
  if (memory !== undefined) cards.push(card("Memory", size(memory), "resident", undefined, chart("memory", memory)));
  const buffers = status["memory.buffers-bytes"], ceiling = status["memory.buffers-limit-bytes"];
  cards.push(card("Buffers of connections", size(buffers), ceiling === null ? "no limit" : "at most " + size(ceiling),
    ceiling === null ? undefined : buffers / ceiling));
  const hits = status["file.cache-hits"], lookups = hits + status["file.cache-misses"];
  if (lookups) cards.push(card("Files from the cache", (100 * hits / lookups).toFixed(0) + " %", number(lookups) + " requests", hits / lookups));
  const failed = status["reloads.failed"], reloads = status["reloads.succeeded"] + failed;
  if (reloads) cards.push(card("Reloads", number(reloads), failed ? number(failed) + " failed" : "none failed"));
  const threads = status["worker-threads"];
  cards.push(card("Uptime", span(status.uptime), threads + (threads === 1 ? " thread" : " threads")
    + (status.generation === null ? "" : ", generation " + status.generation)));
  $("cards").replaceChildren(...cards);
  showResponses(status);
  $("connections-panel").hidden = !connections;
  table("connections", connectionColumns, connectionRows(status));
  $("paths-panel").hidden = !status.paths;
  if (status.paths) table("paths", pathColumns, pathRows(status, seconds));
  $("backends-panel").hidden = !status.backends.length;
  $("backends-count").textContent = status.backends.some(b => b.up === false)
    ? status.backends.filter(b => b.up === false).length + " down" : "";
  table("backends", backendColumns, status.backends);
  $("certificates-panel").hidden = !status.certificates.length;
  table("certificates", certificateColumns, [...status.certificates].sort((a, b) => a["days-left"] - b["days-left"]));
  $("count").textContent = inFlight.length || "";
  table("requests", requestColumns, inFlight);
  const counted = Object.entries(status).filter(([name, value]) =>
    /^(status-errors|http\d|connections\.|quic|ssl|h2olog|temp-files|panics|file|proxy|scripts)/.test(name) && typeof value === "number" && value > 0);
  $("counters").replaceChildren(...(counted.length ? counted : [["none", ""]]).map(([name, value]) => {
    const row = element("div");
    row.append(element("dt", name), element("dd", value === "" ? "" : number(value)));
    return row;
  }));
  last = { at: now, status };
}

async function load() {
  clearTimeout(timer);
  try {
    const response = await fetch(source + "?show=" + modules, { cache: "no-store" });
    if (!response.ok) throw new Error(response.status);
    show(await response.json());
    $("dot").className = "dot live";
    $("dot").title = "up to date";
  } catch (error) {
    $("dot").className = "dot lost";
    $("dot").title = "no answer: " + error.message;
  }
  schedule();
}

function schedule() {
  clearTimeout(timer);
  if ($("refresh").checked && !document.hidden) timer = setTimeout(load, 1000);
}
$("refresh").addEventListener("change", event => event.target.checked ? load() : schedule());
document.addEventListener("visibilitychange", () => document.hidden ? schedule() : load());
load();
