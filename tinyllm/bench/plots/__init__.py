"""Pictures of measurements, and the page that shows them. matplotlib comes with the extra ``bench``."""
