# The Python packages of the tests, in an environment of their own. Sourced by install.sh.

# `runtime/builder/tests/oracle` and `tests/integration/control/foreign_clients.rs` have this folder's name too.
python_folder=${XDG_CACHE_HOME:-$HOME/.cache}/pinion/python-2
# onnxruntime is what results of models are compared with, and onnx makes the models. grpcio calls the API, by code that grpcio-tools generates.
python_packages=(numpy==2.4.6 onnx==1.23.2 onnxruntime==1.31.1 grpcio==1.85.1 grpcio-tools==1.85.1)

# Succeeds if the packages are there.
has_python_tools() {
    [ -x "$python_folder/bin/python3" ] && "$python_folder/bin/python3" -c 'import numpy, onnx, onnxruntime, grpc, grpc_tools' 2>/dev/null
}
