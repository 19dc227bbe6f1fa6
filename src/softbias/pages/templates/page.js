/* The script of our pages: light or dark, values of charts under the pointer or by the arrow keys, enlarged charts, PNG.
   Every page is complete without it. */
(() => {
  "use strict";
  const root = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)");

  /* The theme: that of the device, or the one that the reader chose. */
  const stored = () => { try { return localStorage.getItem("softbias-theme"); } catch { return null; } };
  const store = (theme) => { try { localStorage.setItem("softbias-theme", theme); } catch { /* a private window */ } };
  if (["light", "dark"].includes(stored())) root.dataset.theme = stored();
  const button = document.getElementById("theme");
  if (button) {
    button.hidden = false;
    button.addEventListener("click", () => {
      root.dataset.theme = (root.dataset.theme || (dark.matches ? "dark" : "light")) === "dark" ? "light" : "dark";
      store(root.dataset.theme);
    });
  }

  /* Values: the tip beside the nearest point of a chart. */
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.setAttribute("role", "status");
  tip.hidden = true;
  document.body.append(tip);
  let ring = null;

  const parsed = new WeakMap();
  function pointsOf(group) {
    if (!parsed.has(group)) parsed.set(group, JSON.parse(group.dataset.points));
    return parsed.get(group);
  }
  const groupsOf = (plot) => [...plot.querySelectorAll("[data-points]")].filter((group) => getComputedStyle(group).display !== "none");

  function show(plot, group, index) {
    const [x, y, text] = pointsOf(group)[index], lines = text.split("\n");
    const strong = document.createElement("strong");
    strong.textContent = lines[0];
    tip.replaceChildren(strong, ...lines.slice(1).flatMap((line) => [document.createElement("br"), line]));
    (plot.closest("dialog") || document.body).append(tip);
    tip.hidden = false;
    ring?.remove();
    ring = document.createElementNS("http://www.w3.org/2000/svg", "circle");
    for (const [name, value] of Object.entries({ class: "ring", cx: x, cy: y, r: 9 })) ring.setAttribute(name, value);
    group.append(ring);
    const at = ring.getBoundingClientRect(), box = tip.getBoundingClientRect();
    const left = at.right + 6 + box.width > innerWidth ? at.left - 6 - box.width : at.right + 6;
    tip.style.left = `${Math.max(4, Math.min(left, innerWidth - box.width - 4))}px`;
    tip.style.top = `${Math.max(4, at.top - box.height - 4)}px`;
    plot.chosen = [group, index];
  }
  function hide() {
    tip.hidden = true;
    ring?.remove();
  }

  function nearest(plot, event) {
    let best = null, least = 45 ** 2;
    for (const group of groupsOf(plot)) {
      const matrix = group.getScreenCTM();
      pointsOf(group).forEach(([x, y], index) => {
        const away = (matrix.a * x + matrix.e - event.clientX) ** 2 + (matrix.d * y + matrix.f - event.clientY) ** 2;
        if (away < least) [best, least] = [[group, index], away];
      });
    }
    return best;
  }
  for (const kind of ["pointermove", "pointerdown"]) {
    document.addEventListener(kind, (event) => {
      const plot = event.target.closest?.(".plot"), found = plot && nearest(plot, event);
      if (found) show(plot, ...found);
      else hide();
    });
  }
  document.addEventListener("scroll", hide, { passive: true, capture: true });
  document.addEventListener("focusout", hide);
  document.addEventListener("keydown", (event) => {
    const plot = event.target.closest?.(".plot");
    if (!plot) return;
    if (event.key === "Escape" && !tip.hidden) { hide(); event.preventDefault(); return; }
    if (event.key === "Enter") { enlarge(plot); return; }
    const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key], groups = groupsOf(plot);
    if (!steps || !groups.length) return;
    event.preventDefault();
    const [group, index] = plot.chosen && groups.includes(plot.chosen[0]) ? plot.chosen : [groups[0], steps[1] < 0 ? 1 : -1];
    const other = groups[(groups.indexOf(group) + steps[0] + groups.length) % groups.length], last = pointsOf(other).length - 1;
    show(plot, other, Math.max(0, Math.min(last, steps[0] ? Math.max(0, index) : index + steps[1])));
  });

  /* A chart as large as the window. */
  function enlarge(plot) {
    const figure = plot.closest("figure"), dialog = document.createElement("dialog"), close = document.createElement("button");
    if (!figure || plot.closest("dialog")) return;
    const copy = (figure.querySelector(".plot.broad") || plot).cloneNode(true);
    copy.querySelectorAll(".ring").forEach((one) => one.remove());
    copy.classList.remove("broad", "slim");
    const title = document.createElement("strong");
    title.textContent = figure.querySelector("figcaption strong")?.textContent || "";
    close.textContent = "Close";
    close.type = "button";
    close.addEventListener("click", () => dialog.close());
    const head = document.createElement("div");
    head.className = "head-row";
    head.append(title, close);
    dialog.className = "enlarged";
    dialog.append(head, copy);
    dialog.addEventListener("close", () => { document.body.append(tip); hide(); dialog.remove(); plot.focus(); });
    document.body.append(dialog);
    dialog.showModal();
  }

  /* A chart as a PNG file, in the colors that it has on the page. */
  const COPIED = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "stroke-linecap", "opacity",
    "font-family", "font-size", "font-weight", "display"];
  function save(figure) {
    const plot = [...figure.querySelectorAll(".plot")].find((one) => one.checkVisibility()), copy = plot.cloneNode(true);
    const [, , width, height] = plot.getAttribute("viewBox").split(" ").map(Number), scale = 2;
    const from = [plot, ...plot.querySelectorAll("*")], to = [copy, ...copy.querySelectorAll("*")];
    from.forEach((element, index) => {
      const computed = getComputedStyle(element);
      for (const name of COPIED) to[index].style.setProperty(name, computed.getPropertyValue(name));
      to[index].removeAttribute("data-points");
    });
    copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
    copy.setAttribute("width", width * scale);
    copy.setAttribute("height", height * scale);
    const image = new Image(), canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [width * scale, height * scale];
    image.onload = () => {
      const context = canvas.getContext("2d");
      context.fillStyle = getComputedStyle(document.body).backgroundColor;
      context.fillRect(0, 0, canvas.width, canvas.height);
      context.drawImage(image, 0, 0);
      const link = document.createElement("a");
      link.download = `${figure.dataset.chart}.png`;
      link.href = canvas.toDataURL("image/png");
      link.click();
    };
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(new XMLSerializer().serializeToString(copy))}`;
  }

  for (const tools of document.querySelectorAll(".tools")) {
    const figure = tools.closest("figure"), actions = { Enlarge: () => enlarge([...figure.querySelectorAll(".plot")].find((one) => one.checkVisibility())), PNG: () => save(figure) };
    for (const [name, act] of Object.entries(actions)) {
      const made = document.createElement("button");
      made.type = "button";
      made.textContent = name;
      made.addEventListener("click", act);
      tools.append(made);
    }
  }
  root.dataset.script = "ready";
})();
