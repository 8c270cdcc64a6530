// A frame with the page of a report in it. It is closed off: it sees nothing of the notebook but the run it is sent.

const HEIGHT = 720; // pixels

function render({ model, el }) {
  const frame = document.createElement("iframe");
  frame.setAttribute("sandbox", "allow-scripts allow-downloads");
  frame.title = "Undertow: a run, live";
  Object.assign(frame.style, { width: "100%", height: `${HEIGHT}px`, border: "1px solid rgba(128, 128, 128, 0.35)", borderRadius: "8px", boxSizing: "border-box" });
  frame.srcdoc = model.get("page");
  let ready = false;
  const send = () => {
    const news = model.get("news");
    if (ready && news?.byteLength) frame.contentWindow?.postMessage({ run: news.buffer.slice(news.byteOffset, news.byteOffset + news.byteLength) }, "*");
  };
  const hear = ({ source, data }) => {
    if (source !== frame.contentWindow || data?.undertow !== "ready") return;
    ready = true;
    send();
  };
  addEventListener("message", hear);
  model.on("change:news", send);
  el.append(frame);
  return () => {
    removeEventListener("message", hear);
    model.off("change:news", send);
  };
}

export default { render };
