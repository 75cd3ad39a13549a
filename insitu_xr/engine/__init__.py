"""The only concurrent code: fetch, decode, place, gather; numpy and zarr, no xarray."""
