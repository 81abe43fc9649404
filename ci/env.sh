# Source this file, from bash or zsh: `source ci/env.sh`. It makes .venv if it is missing, activates it, and puts
# ci/bin first on PATH, whose `reframe` knows Par4D's systems.

_par4d_env() {
    local root
    root=$(cd "$(dirname "$1")/.." && pwd) || return 1
    bash "$root/ci/setup" || return 1
    . "$root/.venv/bin/activate" || return 1
    export RFM_CONFIG_FILES="$root/systems/settings.py"
    export PATH="$root/ci/bin:$PATH"
}

# zsh keeps the name of the file being sourced in %x, and has no BASH_SOURCE.
if [ -n "${ZSH_VERSION:-}" ]; then
    eval '_par4d_env "${(%):-%x}"'
else
    _par4d_env "${BASH_SOURCE[0]}"
fi || { echo "env.sh: Par4D's environment is not ready; the lines above say why." >&2; false; }
