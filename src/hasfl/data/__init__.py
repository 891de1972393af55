"""Data sets, their partition over devices, and the order in which a device draws its samples."""

from hasfl.data.augmentation import crop_and_flip as crop_and_flip
from hasfl.data.augmentation import draw_crops as draw_crops
from hasfl.data.dataset import Dataset as Dataset
from hasfl.data.files.device_files import read_device_files as read_device_files
from hasfl.data.files.device_files import shares_of as shares_of
from hasfl.data.files.device_files import write_device_files as write_device_files
from hasfl.data.minibatch import Minibatches as Minibatches
from hasfl.data.partition import label_counts as label_counts
from hasfl.data.partition import partition as partition
from hasfl.data.partition import sample_counts as sample_counts
from hasfl.data.sources import DATASETS as DATASETS
from hasfl.data.sources import load_dataset as load_dataset
