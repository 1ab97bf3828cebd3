# The steps of the gate, and what could not be checked. To be sourced; `logs` is a folder for notes.

step() { printf '\n== %s (%ss)\n' "$1" "$SECONDS"; }

# unchecked NAME: notes a step that could not be run. Also in a subshell, so in a file.
unchecked() {
  printf '\n!! NOT CHECKED: %s. What it needs cannot be had here.\n' "$1"
  printf '%s\n' "$1" >>"$logs/unchecked"
}

# optional NAME COMMAND...: a step whose exit code 75 says that something it needs cannot be had here.
optional() {
  local name="$1" code=0
  shift
  step "$name"
  "$@" || code=$?
  case $code in
    0) ;;
    75) unchecked "$name" ;;
    *) return 1 ;;
  esac
}

# finished: the last step; names what was not checked. With CI_STRICT=1 that is a failure.
finished() {
  [ -s "$logs/unchecked" ] || { step 'done'; return 0; }
  step 'done, with steps that were not run'
  sort -u "$logs/unchecked" | while IFS= read -r name; do printf '!! NOT CHECKED: %s\n' "$name"; done
  [ "${CI_STRICT:-0}" != 1 ]
}
