"""The computations of training: layers and their state, rounds, aggregation, and the served model.

engine, reference_engine, simulated_engine   a round: one device after the other, or all at once
state, optimizers, local_term                the tensors of layers, their gradients and steps
aggregation                                  step b2: common weights from those of the devices
served_model                                 running mean, best model, batch norms measured anew, accuracy
training_data, randomness                    which samples a device uses, and what layers draw
many_devices, per_device_functions           a layer for all devices in one batch
batch_layout, layer_trial, cuda_graphs       how the batch is laid out, and what is fastest
memory                                       a prediction of what a training holds
"""
