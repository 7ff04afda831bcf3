// Fills the table on the home page with what the server really answered, sends
// the requests of its buttons, and gives code blocks a copy button. The site reads fine without it.
"use strict";

const kib = (bytes) => (bytes < 1024 ? `${bytes} B` : `${(bytes / 1024).toFixed(1)} KiB`);

/** The protocol and sizes of this very page, as the browser measured them. */
function measured() {
  const [page] = performance.getEntriesByType("navigation");
  if (!page) return {};
  const facts = { protocol: page.nextHopProtocol || "unknown" };
  if (page.encodedBodySize && page.encodedBodySize < page.decodedBodySize) {
    facts.size = `${kib(page.encodedBodySize)} sent for ${kib(page.decodedBodySize)}`;
  } else if (page.decodedBodySize) {
    facts.size = kib(page.decodedBodySize);
  }
  facts.wait = `${(page.responseStart - page.requestStart).toFixed(1)} ms`;
  return facts;
}

function show(panel, facts) {
  for (const [name, value] of Object.entries(facts)) {
    const cell = panel.querySelector(`[data-fact="${name}"]`);
    if (cell && value) cell.textContent = value;
  }
}

/** The requests behind the buttons: each shows one thing a static server has to get right. */
const asks = {
  conditional: async () => {
    const head = await fetch("/", { method: "HEAD", cache: "no-store" });
    const etag = head.headers.get("etag");
    return ["GET /", { headers: etag ? { "If-None-Match": etag } : {} }];
  },
  range: async () => ["GET /js/site.js", { headers: { Range: "bytes=0-99" } }],
  missing: async () => ["GET /no/such/page", {}],
  method: async () => ["DELETE /robots.txt", { method: "DELETE" }],
  redirect: async () => ["GET /manual", {}],
};

const shown = ["content-type", "content-length", "content-encoding", "content-range", "etag", "allow"];

async function ask(kind, output) {
  try {
    const [line, options] = await asks[kind]();
    const began = performance.now();
    const answer = await fetch(line.split(" ")[1], { ...options, cache: "no-store" });
    const took = (performance.now() - began).toFixed(1);
    const lines = [`${line}  →  ${answer.status} ${answer.statusText}  (${took} ms)`];
    if (answer.redirected) lines.push(`followed to ${new URL(answer.url).pathname}`);
    for (const name of shown) {
      const value = answer.headers.get(name);
      if (value) lines.push(`${name}: ${value}`);
    }
    output.textContent = lines.join("\n");
  } catch (error) {
    output.textContent = `The request failed: ${error.message}`;
  }
}

async function fillPanel(panel) {
  const head = await fetch(location.pathname, { method: "HEAD", cache: "no-store" });
  const named = ["server", "content-encoding", "etag", "cache-control"];
  show(panel, Object.fromEntries(named.map((name) => [name, head.headers.get(name) ?? "–"])));
  show(panel, { scheme: location.protocol === "https:" ? "yes" : "no, cleartext", ...measured() });
}

const panel = document.querySelector("[data-panel]");
if (panel) fillPanel(panel).catch(() => {});

document.querySelector("[data-asks]")?.addEventListener("click", ({ target, currentTarget }) => {
  const kind = target.dataset?.ask;
  if (kind) ask(kind, currentTarget.querySelector("output"));
});

if (navigator.clipboard) {
  for (const block of document.querySelectorAll("pre")) {
    const button = document.createElement("button");
    button.className = "copy";
    button.type = "button";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(block.querySelector("code").textContent);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
    block.append(button);
  }
}
