"""What a layout costs before a machine is rented: parameters, memory, Newton-Schulz FLOPs, bytes per link, the optimizer's step time.

    config.py  dimensions, cluster, optimizer: TOML or a Hugging Face folder      shapes.py  every parameter, its kind and Muon units
    cost.py    FLOPs and the limit formula      layout.py  who holds what          exchange.py  the busiest rank of each exchange
    memory.py  bytes of one rank
    search.py  the best layouts                 report.py  everything as numbers   show.py    as tables    run.py  the verb
    meta.py    the same model as transformers builds it, on the meta device (the only file that needs torch)

FLOPs, the choice between one exchange and two, and the checks of degrees are those of optim/ and parallel/ (their torch-free parts).
Not here: the optimizer and the meshes themselves.
"""
