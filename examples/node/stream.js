// The text as it becomes certain: `node stream.js [PROMPT]`. The schema is read as it is; nothing is generated.

const fs = require("fs");
const path = require("path");
const grpc = require("@grpc/grpc-js");
const protoLoader = require("@grpc/proto-loader");

const protos = process.env.SLUICE_PROTOS ?? path.join(__dirname, "..", "..", "proto");
const definition = protoLoader.loadSync("sluice/v1/generation_service.proto", {
  includeDirs: [protos],
  keepCase: true,
  defaults: true,
  longs: String,
  enums: String,
  oneofs: true,
});
const { sluice } = grpc.loadPackageDefinition(definition);

// As `sluice` does: $SLUICE_SOCKET, which may be http://127.0.0.1:PORT, else where sluiced usually listens.
function target() {
  const named = process.env.SLUICE_SOCKET;
  if (named) return named.startsWith("http://") ? named.slice("http://".length) : `unix:${named}`;
  if (fs.existsSync("/run/sluice/sluice.sock")) return "unix:/run/sluice/sluice.sock";
  const runtime = process.env.XDG_RUNTIME_DIR;
  const folder = runtime ? path.join(runtime, "sluice") : path.join(process.env.TMPDIR || "/tmp", `sluice-${process.getuid()}`);
  return `unix:${path.join(folder, "sluice.sock")}`;
}

const client = new sluice.v1.GenerationService(target(), grpc.credentials.createInsecure());
const content = process.argv[2] ?? "Tell me a story.";
const call = client.Generate({ chat: { messages: [{ role: "CHAT_ROLE_USER", content }] }, length: 64 });

let shown = 0;
function show(text) {
  process.stdout.write(text.subarray(shown));
  shown = text.length;
}

call.on("data", ({ event }) => {
  if (event.event === "pass_done") show(event.pass_done.stable_text);
  if (event.event === "done") {
    show(Buffer.from(event.done.text));
    process.stdout.write("\n");
  }
});
call.on("error", (error) => {
  console.error(error.details);
  process.exitCode = 1;
});
