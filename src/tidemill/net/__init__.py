"""The one HTTP client. Knows neither what is exchanged nor with whom."""
