// Pages that were opened from disk may not start a Worker, so search runs in a hidden frame there.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.appendChild(this.frame);
      const inner = this.frame.contentWindow;
      this.ready = new Promise((resolve) => {
        this.receive = (event) => {
          if (event.source !== inner) return;
          this.dispatchEvent(new MessageEvent("message", { data: event.data }));
        };
        window.addEventListener("message", this.receive);
        inner.document.open();
        inner.document.write("<!doctype html><body></body>");
        inner.document.close();
        inner.postMessage = (data) => parentPost(inner, data);
        let loading = Promise.resolve();
        inner.importScripts = (...scripts) => {
          // The worker awaits the result, so that scripts may come one after the other.
          for (const script of scripts) loading = loading.then(() => load(inner, script));
          return loading;
        };
        load(inner, url).then(resolve);
      });
    }
    postMessage(data) {
      this.ready.then(() =>
        this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })),
      );
    }
    terminate() {
      window.removeEventListener("message", this.receive);
      this.frame.remove();
    }
  };

  function parentPost(inner, data) {
    window.dispatchEvent(new MessageEvent("message", { data, source: inner }));
  }

  function load(inner, url) {
    return new Promise((resolve) => {
      const script = inner.document.createElement("script");
      script.src = new URL(url, location.href);
      script.onload = script.onerror = resolve;
      inner.document.body.appendChild(script);
    });
  }
}
