"""The computations of training: layers and their state, rounds, aggregation, and the served model.

engine, reference_engine, simulated_engine   a round: one device after the other, or all at once
state, optimizers, local_term                the tensors of layers, their gradients and steps
aggregation                                  step b2: common weights from the weights of all devices
served_model                                 running mean, best model, calibration, evaluation
training_data, randomness                    samples of each device, and random numbers of layers
many_devices, per_device_functions           one layer for all devices in one batch
batch_layout, layer_trial, cuda_graphs       rows of the batch, the fastest way to run a layer, CUDA graphs
memory                                       prediction of the memory that a training needs
"""
