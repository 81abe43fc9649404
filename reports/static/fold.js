// Unfolds the section that the address names, names the one that was unfolded last, and unfolds all for printing.
// Without this a browser unfolds what a link leads to by itself, and a press unfolds the others.
(() => {
  const named = () => document.getElementById(decodeURIComponent(location.hash.slice(1)))?.closest("details");
  const unfold = () => named()?.setAttribute("open", "");
  addEventListener("hashchange", unfold);
  unfold();
  document.addEventListener("click", (event) => {
    const details = event.target.closest("summary")?.parentElement;
    if (details && !details.open) history.replaceState(null, "", `#${details.querySelector("div").id}`);
  });
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((one) => (one.open = true)));
})();
