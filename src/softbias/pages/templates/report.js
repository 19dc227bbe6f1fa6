/* Draws the charts, lets the reader hide arms and choose a theme. Without it the page shows pictures instead. */
(() => {
  "use strict";
  const root = document.documentElement, numbers = JSON.parse(document.getElementById("numbers").textContent);
  const narrow = matchMedia("(max-width: 720px)"), dark = matchMedia("(prefers-color-scheme: dark)");
  const hidden = new Set();

  /* Themes: as the device has it, or as chosen here. */
  const recall = () => { try { return localStorage.getItem("softbias-theme"); } catch { return null; } };
  const keep = (theme) => { try { localStorage.setItem("softbias-theme", theme); } catch { /* a private window */ } };
  const theme = () => root.dataset.theme || (dark.matches ? "dark" : "light");
  const choose = (wanted) => { root.dataset.theme = wanted; };
  if (["light", "dark"].includes(recall())) choose(recall());

  /* "@arm0/0.2" -> rgba of the theme, anywhere inside a chart. */
  function color(token) {
    const [name, alpha] = token.slice(1).split("/"), hex = numbers.palette[theme()][name];
    if (!alpha) return hex;
    const part = (place) => parseInt(hex.slice(place, place + 2), 16);
    return `rgba(${part(1)},${part(3)},${part(5)},${alpha})`;
  }
  function painted(value) {
    if (typeof value === "string") return /^@\w+(\/[\d.]+)?$/.test(value) ? color(value) : value;
    if (Array.isArray(value)) return value.map(painted);
    if (value && typeof value === "object") return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, painted(v)]));
    return value;
  }

  function draw(figure) {
    const chart = numbers.charts[figure.dataset.chart], place = figure.querySelector(".live");
    const data = chart.data.map((trace) => ({ ...painted(trace),
      visible: !(hidden.has(trace.meta.arm) || hidden.has(trace.meta.also) || (narrow.matches && trace.meta.label)) }));
    const layout = painted(chart.layout);
    if (narrow.matches) {
      layout.margin = { ...layout.margin, r: 10 };
      layout.font.size = 11;
      for (const axis of [layout.xaxis, layout.yaxis]) axis.title.font = { size: 11 };
      if (layout.yaxis.tickmode === "array" && layout.yaxis.ticktext) {
        layout.yaxis.ticktext = layout.yaxis.ticktext.map((text) => text.length > 22 ? text.replace(/ [−-] /, "<br>− ") : text);
        layout.yaxis.tickfont = { size: 9.5 };
      }
    }
    layout.dragmode = matchMedia("(pointer: coarse)").matches ? false : "zoom";  /* a finger scrolls the page */
    const config = { responsive: true, displaylogo: false, displayModeBar: narrow.matches ? false : "hover",
      modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] };
    place.hidden = false;
    return Plotly.react(place, data, layout, config).then(() => { figure.classList.add("drawn"); });
  }
  const figures = [...document.querySelectorAll("figure[data-chart]")];
  async function drawAll() {
    for (const figure of figures) {
      try { await draw(figure); } catch (error) { figure.querySelector(".live").hidden = true; console.error(error); }
      await new Promise((next) => setTimeout(next));  /* the page stays responsive */
    }
    root.dataset.drawn = "all";
  }

  for (const box of document.querySelectorAll("input[data-arm]")) {
    box.addEventListener("change", () => {
      const arm = Number(box.dataset.arm);
      if (box.checked) hidden.delete(arm); else hidden.add(arm);
      drawAll();
    });
  }
  const button = document.getElementById("theme");
  button.hidden = false;
  button.addEventListener("click", () => { choose(theme() === "dark" ? "light" : "dark"); keep(theme()); drawAll(); });
  dark.addEventListener("change", () => { if (!root.dataset.theme) drawAll(); });
  narrow.addEventListener("change", drawAll);
  for (const link of document.querySelectorAll("a.png")) {
    link.hidden = false;
    link.addEventListener("click", () => { link.href = link.closest("figure").querySelector(".still").src; });
  }
  document.getElementById("arms").classList.add("ready");
  drawAll();
})();
