"""SkyRL's Tinker server from a plain virtual environment: no `uv run`, and Python 3.11 will do.

    SERVER_ENVIRONMENT/bin/python benchmarks/tinker_server.py --base-model FOLDER --port 8000 --backend jax …

`tinker_engine.py` starts it; it runs in the environment where skyrl 0.3.0 is installed and imports nothing of
this library. Flags are skyrl's own, but the host, which is this machine alone."""
import argparse, os, runpy, sys, typing
import typing_extensions

typing.TypedDict = typing_extensions.TypedDict # pydantic refuses the plain one before Python 3.12
CHILD, WORKER = 'engine', 'worker'

def start_server():
    import uvicorn
    from skyrl.tinker import api
    from skyrl.tinker.config import EngineConfig, add_model, config_to_argv
    def child(parent, config):
        return [sys.executable, __file__, CHILD, *config_to_argv(config)]
    api._build_uv_run_cmd_engine = child
    parser = argparse.ArgumentParser(description=__doc__)
    add_model(parser, EngineConfig)
    parser.add_argument('--port', type=int, default=8000)
    args = vars(parser.parse_args())
    settings = {k: v for k, v in args.items() if k in EngineConfig.model_fields}
    api.app.state.engine_config = EngineConfig.model_validate(settings)
    uvicorn.run(api.app, host='127.0.0.1', port=args['port'], log_level='warning')

def join_worker(address, processes, number):
    from skyrl.backends.jax import run_worker
    run_worker(address, int(processes), int(number))

if __name__ == '__main__':
    os.environ.setdefault('JAX_PLATFORMS', 'cpu')
    os.environ.setdefault('HF_HUB_OFFLINE', '1')
    role = sys.argv[1] if len(sys.argv) > 1 else ''
    if role == CHILD: # The process that holds the model
        del sys.argv[1]
        runpy.run_module('skyrl.tinker.engine', run_name='__main__', alter_sys=True)
    elif role == WORKER: # One more process of the model, on another core or another machine
        join_worker(*sys.argv[2:])
    else:
        start_server()
