// What JavaScript adds to pages: they stay up to date, filters apply at once, relative times are refreshed.
// Everything works without it. It connects to its own server only.
"use strict";
(() => {
  const body = document.body, live = document.getElementById("live");
  const QUICK_MS = 1500, HURRY_MAX_MS = 15000;

  // ---- filters apply when they are chosen ----
  for (const each of document.querySelectorAll("select[data-submit]"))
    each.addEventListener("change", () => each.form.requestSubmit());
  for (const form of document.querySelectorAll("form.filters"))
    form.addEventListener("submit", () => {
      for (const each of form.elements) if (each.name && !each.value) each.disabled = true;
      setTimeout(() => { for (const each of form.elements) each.disabled = false; });
    });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
    if (/^(input|textarea|select)$/i.test(event.target.tagName)) return;
    const field = document.querySelector(".find input");
    if (field) { event.preventDefault(); field.focus(); }
  });

  // ---- times ----
  const units = [[86400, "d", 2], [3600, "h", 1], [60, "min", 1], [1, "s", 1]];
  const coarse = (s) => { for (const [n, unit, least] of units) if (s >= n * least) return `${Math.floor(s / n)} ${unit}`; return "0 s"; };
  const skew = Date.now() - Number(body.dataset.now || Date.now());
  const tell = () => {
    for (const each of document.querySelectorAll("main time[datetime]")) {
      const gap = (Date.now() - skew - Date.parse(each.dateTime)) / 1000;
      const words = gap >= 0 ? `${coarse(gap)} ago` : `in ${coarse(-gap)}`;
      if (each.textContent !== words) each.textContent = words;
    }
  };
  setInterval(tell, 10000);

  // ---- live: parts of the page that have changed are put in its place ----
  const watch = body.dataset.watch, every = Number(body.dataset.every || 0);
  if (!watch && !every) return;
  let source = null, timer = 0, busy = false, again = false, after = Number(body.dataset.after || 0), last = 0, pause = QUICK_MS;

  const isInUse = (part) => {
    const at = document.activeElement;
    return (at && at !== body && part.contains(at) && /^(input|select|textarea)$/i.test(at.tagName) && !at.matches(".fold"))
      || part.querySelector("input:checked:not(.fold), details[open] form") !== null;
  };
  const show = (text) => {
    const page = new DOMParser().parseFromString(text, "text/html");
    for (const part of document.querySelectorAll("[data-live]")) {
      const next = page.getElementById(part.id);
      if (!next || next.innerHTML === part.innerHTML || isInUse(part)) continue;
      const open = [...part.querySelectorAll("details")].map((each) => each.open);
      const unfolded = [...part.querySelectorAll(".fold:checked")].map((each) => each.id);
      const at = document.activeElement, stops = "a, button, summary, .fold, [tabindex]";
      const place = at ? [...part.querySelectorAll(stops)].indexOf(at) : -1;
      part.replaceChildren(...next.childNodes);
      part.querySelectorAll("details").forEach((each, k) => { if (open[k]) each.open = true; });
      for (const each of part.querySelectorAll(".fold")) each.checked = unfolded.includes(each.id);
      if (place >= 0) {  // who moves by keyboard stays where he was
        const now = [...part.querySelectorAll(stops)], href = at.getAttribute("href");
        (now.find((each) => href && each.getAttribute("href") === href) || now[place])?.focus({ preventScroll: true });
      }
      part.classList.remove("changed"); void part.offsetWidth; part.classList.add("changed");
    }
    const told = page.getElementById("live");
    if (live && told) live.querySelector("time").textContent = told.querySelector("time").textContent;
    after = Math.max(after, Number(page.body.dataset.after || 0));
    tell();
  };
  const load = async () => {
    if (busy) { again = true; return; }
    busy = true; last = Date.now();
    try {
      const reply = await fetch(location.href, { headers: { Accept: "text/html" }, credentials: "same-origin" });
      if (reply.redirected && new URL(reply.url).pathname === "/login") { stop(); location.reload(); return; }
      if (reply.ok) show(await reply.text());
    } catch { /* the server is unreachable: the feed reports its return */ } finally {
      // a page that takes long to make is asked for more rarely
      pause = Math.min(HURRY_MAX_MS, Math.max(QUICK_MS, 10 * (Date.now() - last)));
      busy = false;
      if (again) { again = false; soon(); }
    }
  };
  const soon = () => { if (!timer) timer = setTimeout(() => { timer = 0; load(); }, Math.max(0, last + pause - Date.now())); };
  const concerns = (news) => {
    if (watch === "job") return !news.jobs || news.jobs.includes(Number(body.dataset.job));
    if (watch === "campaign") return !news.campaigns.length || news.campaigns.includes(body.dataset.campaign);
    return true;
  };
  const start = () => {
    if (source || document.hidden || !watch) return;
    source = new EventSource(`/live?after=${after}`);
    source.addEventListener("news", (event) => {
      const news = JSON.parse(event.data);
      if (news.number > after) { after = news.number; if (concerns(news)) soon(); }
    });
    source.addEventListener("error", () => {
      if (source && source.readyState === EventSource.CLOSED) { source = null; soon(); }  // the session is over
    });
  };
  const stop = () => { if (source) { source.close(); source = null; } };
  document.addEventListener("visibilitychange", () => { if (document.hidden) stop(); else { start(); soon(); } });
  addEventListener("pagehide", stop);
  addEventListener("pageshow", start);
  if (every) setInterval(() => { if (!document.hidden) soon(); }, every * 1000);
  start();
})();
