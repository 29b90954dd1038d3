#!/bin/sh
# Answers the twelve prompts of first-answers.txt with a model, each with the flags of `sluice generate` that are given:
#
#   docs/first-answers.sh MODEL [FLAGS]      for example  docs/first-answers.sh FILE.gguf --greedy
#
# Expects sluiced and sluice on the path; the daemon is one of its own, in a folder of its own.
set -eu
model=$1
shift
folder=$(mktemp -d)
XDG_CONFIG_HOME=$folder HOME=$folder sluiced --socket "$folder/s" --model "$model" --device cpu --log warn &
daemon=$!
trap 'kill $daemon; wait $daemon || true; rm -r "$folder"' EXIT
until sluice --socket "$folder/s" status --json 2>"$folder/error" | grep -q '"state":"ready"'; do
    kill -0 $daemon
    sleep 0.2
done
while IFS= read -r prompt; do
    printf '**%s**\n\n' "$prompt"
    sluice --socket "$folder/s" generate "$prompt" --length 96 "$@" 2>"$folder/notes" </dev/null
    sed 's/^/> /' "$folder/notes"
    echo
done <"$(dirname "$0")/first-answers.txt"
